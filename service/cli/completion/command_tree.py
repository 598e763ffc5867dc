"""What can be completed: commands, options and their values, read from an argparse parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

# Values that are files or folders; argparse knows no such type.
FILE_OPTIONS = (
    *("--data-dir", "--documents", "--embedder", "--from", "--model", "--model-cache", "--out"),
    "--questions",
)
FILE_METAVARS = ("PATH",)


@dataclass(frozen=True)
class Option:
    """An option.

    Attributes:
        names: As they are typed, e.g. ("-h", "--help").
        about: Its help, on one line.
        takes_value: Whether a word follows it.
        choices: The values that it takes; (): any.
        files: Whether its value is a file or folder.
    """

    names: tuple[str, ...]
    about: str
    takes_value: bool
    choices: tuple[str, ...]
    files: bool


@dataclass(frozen=True)
class Command:
    """A command, or an action of one.

    Attributes:
        path: The words that lead here, e.g. ("jobs", "list"); (): the program itself.
        about: Its help, on one line.
        options: Its options.
        arguments: The words that its first argument may be; (): any.
        files: Whether its arguments are files.
        commands: What may follow.
    """

    path: tuple[str, ...]
    about: str
    options: tuple[Option, ...]
    arguments: tuple[str, ...]
    files: bool
    commands: tuple[Command, ...]

    @property
    def at(self) -> str:
        """The path as one word or several: how scripts name it."""
        return " ".join(self.path)

    def all(self) -> Iterator[Command]:
        """This command and all below it."""
        yield self
        for command in self.commands:
            yield from command.all()


def read_parser(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = (), about: str = ""
) -> Command:
    """The tree of commands of a parser."""
    options: list[Option] = []
    arguments: tuple[str, ...] = ()
    commands: list[Command] = []
    files = False
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: _one_line(choice.help) for choice in action._choices_actions}
            commands += [
                read_parser(below, (*path, name), helps.get(name, ""))
                for name, below in action.choices.items()
            ]
        elif action.option_strings:
            options.append(_option(action))
        else:
            files = files or action.metavar in FILE_METAVARS
            arguments = arguments or _words(action)
    return Command(path, about, tuple(options), arguments, files, tuple(commands))


def _option(action: argparse.Action) -> Option:
    names = tuple(action.option_strings)
    return Option(
        names=names,
        about=_one_line(action.help),
        takes_value=action.nargs != 0,
        choices=_words(action),
        files=any(name in FILE_OPTIONS for name in names),
    )


def _words(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").replace("%%", "%").split())
