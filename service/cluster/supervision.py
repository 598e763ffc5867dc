"""Keeps one worker process alive on a TCP address, and tells what it does. Knows nothing of Ray.

As the gateway's supervisor, it is connected to its process, so that one that hangs is replaced.
Unlike it, it can be asked to drain. A process that is started again has its predecessor's address
where that is free, so gateways need no new list: they see the connection break and say Hello again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from service.cluster.actor_state import ActorState
from service.errors import KvstitchError
from service.gateway.worker_client.connection import WorkerConnection
from service.gateway.worker_client.supervisor import (
    COMMAND,
    HEALTHY_AFTER_S,
    REFUSED,
    forward_stderr,
)
from service.shared import openmp
from service.shared.worker_settings import WorkerSettings

log = logging.getLogger("kvstitch.cluster")

_TERMINATED_S = 5.0  # for a process that hangs, between SIGTERM and SIGKILL


class Prepared(Protocol):
    """A worker whose model is there."""

    @property
    def secret(self) -> str:
        """Of the fleet."""
        ...

    def at(self, address: str) -> WorkerSettings:
        """The process's settings for an address."""
        ...


class SupervisedWorker:
    """One worker process after another.

    Attributes:
        state: what is known; replaced whenever something changes.
        revision: counts the changes.
    """

    def __init__(
        self,
        state: ActorState,
        prepare: Callable[[], Prepared],
        next_address: Callable[[str], str],
        *,
        command: Sequence[str] = COMMAND,
        backoff_s: tuple[float, float] = (0.5, 30.0),
        heartbeat_timeout_s: float = 10.0,
    ) -> None:
        """Nothing is started yet.

        Args:
            state: name, node and version; the rest is kept by this object.
            prepare: finds the model; called on a thread.
            next_address: of the next process, from that of the one before; empty: none was.
            command: starts the worker process.
            backoff_s: first and longest pause between two starts.
            heartbeat_timeout_s: silence after which a process counts as hanging.
        """
        self.state = state
        self.revision = 0
        self._prepare = prepare
        self._next_address = next_address
        self._command = tuple(command)
        self._backoff_s = backoff_s
        self._changed = asyncio.Condition()
        self._draining = asyncio.Event()
        self._process: Process | None = None
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._notices: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Supervises until the worker is drained or refused; never raises KvstitchError."""
        self._tell(phase="preparing", reason="the model is looked for")
        connection: WorkerConnection | None = None
        try:
            prepared = await asyncio.to_thread(self._prepare)
            connection = WorkerConnection(
                heartbeat_timeout_s=self._heartbeat_timeout_s,
                on_change=lambda up: self._ready_or_not(up, connection),
                secret=prepared.secret,
            )
            await self._run(prepared, connection)
        except KvstitchError as error:
            self._tell(phase="refused", reason=error.message, address="", pid=None)
        except Exception as error:
            log.exception("the worker cannot be started")
            self._tell(phase="refused", reason=f"it cannot be started: {error}", address="")
        finally:
            if connection is not None:
                await connection.close()

    async def changed(self, seen: int, patience_s: float) -> tuple[int, ActorState]:
        """The state once it is not that of revision `seen`, or after `patience_s` as it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s), self._changed:
                await self._changed.wait_for(lambda: self.revision != seen)
        return self.revision, self.state

    async def drain(self) -> None:
        """Asks the process to finish what runs; returns when it has ended. Never starts another."""
        self._draining.set()
        if self._process is not None:
            self._tell(phase="draining", reason="it finishes what runs")
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        async with self._changed:
            await self._changed.wait_for(lambda: self.state.phase in ("ended", "refused"))

    # -- inside ----------------------------------------------------------------------------------

    async def _run(self, prepared: Prepared, connection: WorkerConnection) -> None:
        pause, longest = self._backoff_s
        loop = asyncio.get_running_loop()
        while not self._draining.is_set():
            began = loop.time()
            code, last_line = await self._run_once(prepared, connection)
            if self._draining.is_set():
                break
            reason = last_line or f"the process ended with code {code} and gave no reason"
            if code == REFUSED:
                self._tell(phase="refused", reason=reason, address="", pid=None)
                return
            if loop.time() - began > HEALTHY_AFTER_S:
                pause = self._backoff_s[0]
            connection.disconnect("the worker process has ended")
            log.error("the worker ended (code %s); again in %.1f s: %s", code, pause, last_line)
            self._tell(
                phase="restarting",
                reason=f"the process ended (code {code}): {reason}",
                pid=None,
                restarts=self.state.restarts + 1,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), pause)
            pause = min(2 * pause, longest)
        self._tell(phase="ended", reason="it was drained", address="", pid=None)

    async def _run_once(self, prepared: Prepared, connection: WorkerConnection) -> tuple[int, str]:
        """Runs the worker once; returns its exit code and the last line of its stderr."""
        settings = prepared.at(self._next_address(self.state.address))
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stderr=PIPE,
            start_new_session=True,
            env=_environment(),
        )
        self._process = process
        if self._draining.is_set():
            process.terminate()
        assert process.stdin is not None
        process.stdin.write(settings.to_json().encode() + b"\n")
        tail = asyncio.create_task(forward_stderr(process))
        self._tell(
            phase="loading",
            reason="the worker loads the model",
            address=settings.address,
            pid=process.pid,
        )
        connection.connect(settings.address)
        exited = asyncio.create_task(process.wait())
        silence = asyncio.create_task(connection.silent.wait())
        try:
            await asyncio.wait({exited, silence}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await _kill(process)
            return await exited, await tail
        finally:
            silence.cancel()
            self._process = None

    def _ready_or_not(self, up: bool, connection: WorkerConnection | None) -> None:
        if self._draining.is_set() or self._process is None:
            return
        if up:
            self._tell(phase="ready", reason="")
        elif connection is not None:
            self._tell(phase="loading", reason=connection.reason)

    def _tell(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        self.revision += 1
        notice = asyncio.ensure_future(self._notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _environment() -> dict[str, str]:
    """Of the worker process: it loads the same kvstitch as this one, wherever that was started."""
    search_path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    return {**os.environ, **openmp.ENVIRONMENT, **search_path}


async def _kill(process: Process) -> None:
    for act in (process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            act()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _TERMINATED_S)
            return
