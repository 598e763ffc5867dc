"""What an actor tells of itself and of its worker process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

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

# A worker that may take requests: what is less than this many is made good.
COUNTED: tuple[Phase, ...] = ("waiting", "preparing", "loading", "ready", "restarting", "refused")
# The process is there, or another will be at its address; a gateway that loses the address cuts off
# the streams.
REACHABLE: tuple[Phase, ...] = ("loading", "ready", "restarting", "draining")


@dataclass(frozen=True)
class ActorState:
    """One actor and its worker process.

    Attributes:
        name: of the actor.
        phase: see Phase.
        node: name of its machine; empty while there is none.
        address: of the worker process, tcp://IP:PORT; empty while there is none.
        pid: of the worker process; None while there is none.
        version: of kvstitch on that machine.
        restarts: of the process, by this actor.
        reason: why it is not ready; empty if it is.
        plan: digest of the settings that it was started with.
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

    def fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> ActorState:
        """What an actor sent, perhaps one of another version: fields unknown here are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        taken = {name: value for name, value in fields.items() if name in known}
        if taken.get("phase") not in get_args(Phase):
            taken["phase"] = "loading"
        return cls(**taken)
