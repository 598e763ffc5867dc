"""Lets a process kill itself at the nth call of a named function, before, inside or after it."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Called by every write of a chunk or of extra tensors, by deletes and by the scan at start.
POINTS = {
    "open": 60,
    "writev": 20,
    "fsync": 30,
    "replace": 20,
    "unlink": 20,
    "mkdir": 4,
    "scandir": 30,
    "utime": 30,
    "sendall": 40,
}


@dataclass(frozen=True)
class KillPoint:
    """One moment: `name` is called for the nth time; `when` is before, inside or after."""

    name: str
    nth: int
    when: str

    @classmethod
    def draw(cls, rng: random.Random, *, redis: bool) -> KillPoint:
        names = [name for name in POINTS if redis or name != "sendall"]
        name = rng.choice(names)
        whens = ["before", "after"] + ["inside"] * (name in ("writev", "sendall"))
        return cls(name, rng.randint(1, POINTS[name]), rng.choice(whens))

    def arm(self) -> None:
        """From now on this process dies there."""
        owner: Any = socket.socket if self.name == "sendall" else os
        setattr(owner, self.name, self._counting(getattr(owner, self.name)))

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def counted(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls < self.nth:
                return call(*args, **named)
            if self.when == "inside":
                _half(call, self.name, *args)
            elif self.when == "after":
                call(*args, **named)
            die()
            raise AssertionError("nobody outlives SIGKILL")

        return counted


def _half(call: Callable[..., Any], name: str, target: Any, content: Any) -> None:
    """Write only the first half."""
    if name == "writev":
        whole = b"".join(bytes(part) for part in content)
        call(target, [memoryview(whole)[: len(whole) // 2]])
    else:
        call(target, bytes(content)[: len(content) // 2])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
