"""Runs at the start of the service's processes, because its folder is on their PYTHONPATH.

Two things cannot be done to a process from outside: killing it at a named point of a write, and
giving it another clock. Both are asked for by files in the folder CHAOS_FAULTS:

    gateway.json, worker.json   {"id", "point", "nth", "after"}: die at the nth call of that point
    clock                       seconds to add to the time of day

Nothing of the service knows of this.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

CLOCK_CHECK_S = 0.2
PR_SET_PDEATHSIG = 1  # linux/prctl.h
FOLDER = os.environ.get("CHAOS_FAULTS", "")
ROLE = "worker" if "kvstitch.service.worker" in sys.orig_argv else "gateway"

_real_open, _real_unlink = open, os.unlink


class DeathAtAPoint:
    """Counts calls of the point that the plan names, and ends the process at the right one."""

    def __init__(self, plan: str) -> None:
        self._plan = plan
        self._id = ""
        self._left = 0

    def reached(self, point: str, after: bool) -> None:
        try:
            with _real_open(self._plan, encoding="utf-8") as file:
                plan = json.load(file)
        except (OSError, ValueError):
            return
        if plan["point"] != point or plan["after"] != after:
            return
        if plan["id"] != self._id:
            self._id, self._left = plan["id"], plan["nth"]
        self._left -= 1
        if self._left <= 0:
            _real_unlink(self._plan)  # or the next process would die, too
            os.kill(os.getpid(), signal.SIGKILL)


def dying(call: Callable[..., Any], point: str, death: DeathAtAPoint) -> Callable[..., Any]:
    def patched(*args: Any, **kwargs: Any) -> Any:
        death.reached(point, after=False)
        result = call(*args, **kwargs)
        death.reached(point, after=True)
        return result

    return patched


def patch_points(death: DeathAtAPoint) -> None:
    for name in ("replace", "fsync", "writev", "unlink"):
        setattr(os, name, dying(getattr(os, name), f"os.{name}", death))
    if ROLE == "worker":  # Redis: the worker's other sockets are ZeroMQ's own
        sendall = dying(socket.socket.sendall, "socket.sendall", death)
        socket.socket.sendall = sendall  # type: ignore[method-assign]

    class Connection(sqlite3.Connection):
        execute = dying(sqlite3.Connection.execute, "sqlite.execute", death)
        executemany = dying(sqlite3.Connection.executemany, "sqlite.execute", death)
        commit = dying(sqlite3.Connection.commit, "sqlite.commit", death)

    connect = sqlite3.connect

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **{"factory": Connection, **kwargs})
        return connection

    sqlite3.connect = connected  # type: ignore[assignment]


def patch_clock(path: str) -> None:
    """The time of day jumps; the monotonic clock, as on a real machine, does not."""
    now, now_ns = time.time, time.time_ns
    state = {"checked": -1.0, "shift": 0.0}

    def shift() -> float:
        moment = time.monotonic()
        if moment - state["checked"] > CLOCK_CHECK_S:
            state["checked"] = moment
            try:
                with _real_open(path, encoding="utf-8") as file:
                    state["shift"] = float(file.read())
            except (OSError, ValueError):
                state["shift"] = 0.0
        return state["shift"]

    time.time = lambda: now() + shift()
    time.time_ns = lambda: now_ns() + int(shift() * 1e9)


def die_with_parent() -> None:
    """A run that is killed leaves no service behind, which would hold the data folder."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if FOLDER:
    die_with_parent()
    patch_points(DeathAtAPoint(os.path.join(FOLDER, f"{ROLE}.json")))
    patch_clock(os.path.join(FOLDER, "clock"))
