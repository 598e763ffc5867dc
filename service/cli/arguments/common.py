"""Options that all clients of a service have, and what values may be.

The options set nothing unless they are given (SUPPRESS). Their defaults belong to the outermost
parser, so that `kvstitch jobs --json list` and `jobs list --json` mean the same.
"""

from __future__ import annotations

import argparse
from typing import TypeAlias

DEFAULT_URL = "http://127.0.0.1:8000"

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_client_options(parser: argparse.ArgumentParser) -> None:
    add, later = parser.add_argument, argparse.SUPPRESS
    add("--url", default=later, help=f"the service (default: KVSTITCH_URL or {DEFAULT_URL})")
    add("--api-key", default=later, help="default: KVSTITCH_API_KEY, which others cannot see in "
        "the process list")  # fmt: skip
    add("--json", action="store_true", default=later, help="JSON on stdout and nothing else")


def add_action(actions: Commands, name: str, command: object, help: str) -> argparse.ArgumentParser:
    made = actions.add_parser(name, help=help)
    made.set_defaults(command=command)
    add_client_options(made)
    return made


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value < 1e6:
        raise argparse.ArgumentTypeError("must be at least 0.05")
    return value


def minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
