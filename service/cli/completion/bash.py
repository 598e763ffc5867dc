"""The script for bash (3.2 and newer)."""

from __future__ import annotations

from shlex import quote

from service.cli.completion.command_tree import Command

HEAD = """\
# Completion of kvstitch for bash: eval "$(kvstitch completion bash)"
_kvstitch() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local at="" words="" i
    # bash takes "=" for a word of its own.
    if [[ $word == "=" ]]; then
        word=""
    elif [[ $before == "=" ]]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at:${COMP_WORDS[i]}" in
"""
VALUES = """\
        esac
    done
    case "$at:$before" in
"""
WORDS = """\
    esac
    case "$at" in
"""
TAIL = """\
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
_kvstitch_files() {
    compopt -o filenames 2>/dev/null
    local file
    while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$1")
}
complete -F _kvstitch kvstitch
"""


def script(root: Command) -> str:
    """Completes what `root` describes."""
    return "".join((HEAD, *_path(root), VALUES, *_values(root), WORDS, *_words(root), TAIL))


def _path(root: Command) -> list[str]:
    """Finds the command that the words so far lead to; values of options are no commands."""
    lines = []
    for command in root.all():
        lines += [
            f"            {quote(f'{command.at}:{below.path[-1]}')}) at={quote(below.at)} ;;\n"
            for below in command.commands
        ]
        valued = [n for option in command.options if option.takes_value for n in option.names]
        if valued:
            cases = "|".join(quote(f"{command.at}:{name}") for name in valued)
            lines.append(f"            {cases}) ((i++)) ;;\n")
    return lines


def _values(root: Command) -> list[str]:
    lines = []
    for command in root.all():
        for option in command.options:
            if not option.takes_value:
                continue
            cases = "|".join(quote(f"{command.at}:{name}") for name in option.names)
            if option.choices:
                offer = f'COMPREPLY=($(compgen -W {quote(" ".join(option.choices))} -- "$word"));'
            else:
                offer = '_kvstitch_files "$word";' if option.files else ""
            lines.append(f"        {cases}) {offer} return ;;\n")
    return lines


def _words(root: Command) -> list[str]:
    lines = []
    for command in root.all():
        words = [below.path[-1] for below in command.commands] + list(command.arguments)
        words += [name for option in command.options for name in option.names]
        files = '[[ $word == -* ]] || _kvstitch_files "$word"; ' if command.files else ""
        stop = "[[ $word == -* ]] || return; " if command.files else ""
        lines.append(
            f"        {quote(command.at)}) {files}{stop}words={quote(' '.join(words))} ;;\n"
        )
    return lines
