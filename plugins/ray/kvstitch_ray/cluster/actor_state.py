"""The state of an actor and of its worker process, and how actors are named.

Names are `kvstitch-worker-<n>`, n from 1, in the namespace `kvstitch`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

NAMESPACE = "kvstitch"
PREFIX = "kvstitch-worker-"

Phase = Literal[
    "waiting",  # Ray has not started the actor: there is no room, or its machine was lost
    "preparing",  # the model is found on that machine, fetched or converted
    "loading",  # the process runs and is not ready
    "ready",
    "restarting",  # the process ended; another is started after a pause
    "draining",  # it takes nothing new and finishes what runs
    "refused",  # it will never start with this model or these settings
    "ended",
    "failed",  # the actor itself could not be started
]

# Workers that take requests, or will: `cluster up` brings their number to --workers.
COUNTED: tuple[Phase, ...] = ("waiting", "preparing", "loading", "ready", "restarting", "refused")
# The process is there, or another will be at its address. Gateways cut off the streams of a worker
# whose address is taken off their list.
REACHABLE: tuple[Phase, ...] = ("loading", "ready", "restarting", "draining")


@dataclass(frozen=True)
class ActorState:
    """One actor and its worker process.

    Attributes:
        name: The actor's name.
        phase: See Phase.
        node: Name of its machine; empty while there is none.
        address: The worker process's, tcp://IP:PORT; empty while there is none.
        pid: The worker process's id; None while there is none.
        version: Version of kvstitch on that machine.
        restarts: How many times this actor has restarted the process.
        reason: Why it is not ready; empty if it is.
        plan: Digest of the settings that it was started with.
    """

    name: str
    phase: Phase = "waiting"
    node: str = ""
    address: str = ""
    pid: int | None = None
    version: str = ""
    restarts: int = 0
    reason: str = ""
    plan: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> ActorState:
        """Read what an actor sent, perhaps one of another version: unknown fields are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        taken = {name: value for name, value in fields.items() if name in known}
        if taken.get("phase") not in get_args(Phase):
            taken["phase"] = "loading"
        return cls(**taken)


def name_of(number: int) -> str:
    return f"{PREFIX}{number}"


def number_of(name: str) -> int | None:
    """Return the number in an actor's name; None if it is not a worker's name."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and digits.isdecimal() else None


def workers_among(names: Iterable[str]) -> list[str]:
    """Return the names of workers, ordered by their numbers."""
    found = [(number, name) for name in names if (number := number_of(name)) is not None]
    return [name for _, name in sorted(found)]


def lowest_free(names: Iterable[str]) -> int:
    """Return the lowest number that no worker has."""
    taken = {number_of(name) for name in names}
    return next(number for number in itertools.count(1) if number not in taken)
