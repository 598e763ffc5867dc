"""The script for fish."""

from __future__ import annotations

from service.cli.completion.command_tree import Command, Option

HEAD = """\
# Completion of kvstitch for fish: kvstitch completion fish | source
function __kvstitch_at
    set -l at ''
    set -l skip 0
    set -l words (commandline -opc)
    set -e words[1]
    for word in $words
        if test $skip = 1
            set skip 0
            continue
        end
        switch "$at:$word"
"""
TAIL = """\
        end
    end
    test "$at" = "$argv[1]"
end
complete -c kvstitch -f
"""


def script(root: Command) -> str:
    """Completes what `root` describes."""
    return "".join((HEAD, *_path(root), TAIL, *_entries(root)))


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _path(root: Command) -> list[str]:
    lines = []
    for command in root.all():
        for below in command.commands:
            lines.append(f"            case {_quote(f'{command.at}:{below.path[-1]}')}\n")
            lines.append(f"                set at {_quote(below.at)}\n")
        valued = [n for option in command.options if option.takes_value for n in option.names]
        if valued:
            cases = " ".join(_quote(f"{command.at}:{name}") for name in valued)
            lines.append(f"            case {cases}\n                set skip 1\n")
    return lines


def _entries(root: Command) -> list[str]:
    lines = []
    for command in root.all():
        here = f"complete -c kvstitch -n {_quote(f'__kvstitch_at {_quote(command.at)}')}"
        for below in command.commands:
            lines.append(f"{here} -a {_quote(below.path[-1])} -d {_quote(below.about)}\n")
        if command.arguments:
            lines.append(f"{here} -a {_quote(' '.join(command.arguments))}\n")
        if command.files:
            lines.append(f"{here} -F\n")
        lines += [f"{here}{_option(option)}\n" for option in command.options]
    return lines


def _option(option: Option) -> str:
    out = ""
    for name in option.names:
        out += f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
    if option.choices:
        out += f" -x -a {_quote(' '.join(option.choices))}"
    elif option.takes_value:
        out += " -r -F" if option.files else " -x"
    return f"{out} -d {_quote(option.about)}"
