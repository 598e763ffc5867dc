"""`kvstitch completion`: prints a script that completes commands and options in a shell.

    command_tree   what there is to complete, read from the parser itself
    bash, zsh, fish   the script of each shell, made from that

The scripts hold everything: completing starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from service.cli.completion import bash, fish, zsh
from service.cli.completion.command_tree import Command, read_parser

SCRIPTS: dict[str, Callable[[Command], str]] = {
    "bash": bash.script,
    "zsh": zsh.script,
    "fish": fish.script,
}


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Print the script for the shell that was asked for."""
    print(SCRIPTS[args.shell](read_parser(parser)), end="")
    return 0
