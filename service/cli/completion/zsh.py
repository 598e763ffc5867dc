"""The script for zsh."""

from __future__ import annotations

from service.cli.completion.command_tree import Command

HEAD = """\
#compdef kvstitch
# Completion of kvstitch for zsh: source <(kvstitch completion zsh)
_kvstitch() {
    local at="" i
    local -a commands options
    for ((i = 2; i < CURRENT; i++)); do
        case "$at:${words[i]}" in
"""
VALUES = """\
        esac
    done
    case "$at:${words[CURRENT-1]}" in
"""
WORDS = """\
    esac
    case "$at" in
"""
TAIL = """\
    esac
    (( $#commands )) && _describe -t commands command commands
    [[ ${words[CURRENT]} == -* || $#commands == 0 ]] && _describe -o -t options option options
}
if [[ ${funcstack[1]} == _kvstitch ]]; then
    _kvstitch "$@"
else
    compdef _kvstitch kvstitch
fi
"""


def script(root: Command) -> str:
    """Completes what `root` describes."""
    return "".join((HEAD, *_path(root), VALUES, *_values(root), WORDS, *_words(root), TAIL))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _described(word: str, about: str) -> str:
    """An entry of _describe, which ends the word at the first bare colon."""
    return _quote(f"{word.replace(':', chr(92) + ':')}:{about}")


def _path(root: Command) -> list[str]:
    lines = []
    for command in root.all():
        lines += [
            f"            ({_quote(f'{command.at}:{below.path[-1]}')}) at={_quote(below.at)} ;;\n"
            for below in command.commands
        ]
        valued = [n for option in command.options if option.takes_value for n in option.names]
        if valued:
            cases = "|".join(_quote(f"{command.at}:{name}") for name in valued)
            lines.append(f"            ({cases}) ((i++)) ;;\n")
    return lines


def _values(root: Command) -> list[str]:
    lines = []
    for command in root.all():
        for option in command.options:
            if not option.takes_value:
                continue
            cases = "|".join(_quote(f"{command.at}:{name}") for name in option.names)
            offer = "_files; " if option.files else ""
            if option.choices:
                offer = f"compadd -- {' '.join(map(_quote, option.choices))}; "
            lines.append(f"        ({cases}) {offer}return ;;\n")
    return lines


def _words(root: Command) -> list[str]:
    lines = []
    for command in root.all():
        words = [_described(below.path[-1], below.about) for below in command.commands]
        words += [_quote(word) for word in command.arguments]
        options = [_described(n, option.about) for option in command.options for n in option.names]
        files = "[[ ${words[CURRENT]} == -* ]] || _files; " if command.files else ""
        lines.append(
            f"        ({_quote(command.at)}) {files}commands=({' '.join(words)}) "
            f"options=({' '.join(options)}) ;;\n"
        )
    return lines
