"""What a check finds. Knows no check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, and what to do unless it is ok."""

    check: str
    level: Level
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warn(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "fail", message, remedy)
