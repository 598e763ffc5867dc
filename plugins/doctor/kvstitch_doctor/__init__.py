"""`kvstitch doctor`: looks for what is wrong, and says what to do; a file for each subject."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from kvstitch.service.plugins import Verb, hookimpl


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [Verb("doctor", "look for what is wrong, and say what to do", _add_arguments)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvstitch_doctor.command import add_arguments

    add_arguments(parser)


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str
    level: Literal["ok", "warn", "fail"]
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warn(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "fail", message, remedy)
