"""How actors are named: `kvstitch-worker-<n>`, n from 1, in the namespace `kvstitch`."""

from __future__ import annotations

from collections.abc import Iterable

NAMESPACE = "kvstitch"
PREFIX = "kvstitch-worker-"


def name_of(number: int) -> str:
    return f"{PREFIX}{number}"


def number_of(name: str) -> int | None:
    """The number in an actor's name; None if it is no worker's."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and digits.isdecimal() else None


def workers_among(names: Iterable[str]) -> list[str]:
    """The names of workers, by their numbers."""
    found = [(number, name) for name in names if (number := number_of(name)) is not None]
    return [name for _, name in sorted(found)]


def lowest_free(names: Iterable[str]) -> int:
    """The lowest number that no worker has."""
    taken = {number_of(name) for name in names}
    number = 1
    while number in taken:
        number += 1
    return number
