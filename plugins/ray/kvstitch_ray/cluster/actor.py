"""A Ray actor, and the worker process on a TCP address that it keeps alive.

The process is supervised as the gateway supervises its own, heartbeat included. One that is
restarted gets its predecessor's address where that is free, so gateways need no new list: they see
the connection break and connect again.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from kvstitch.service import __version__
from kvstitch.service.cli.serve import PreparedWorker
from kvstitch.service.errors import InvalidSetting, KvstitchError
from kvstitch.service.gateway.data_folder import UMASK
from kvstitch.service.gateway.worker_client.connection import WorkerConnection
from kvstitch.service.gateway.worker_client.supervisor import COMMAND, Supervisor
from kvstitch.service.shared import resources
from kvstitch_ray.cluster.records import ActorState, Phase, WorkerPlan, name_of

log = logging.getLogger("kvstitch.cluster")


class WorkerActor:
    """`ray_cluster` makes a detached actor of it. Ray calls its methods on one event loop."""

    def __init__(self, number: int, plan: str) -> None:
        """Start the worker, also when Ray brings the actor back on another machine."""
        os.umask(UMASK)  # the worker inherits it
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        host: str = _ray().util.get_node_ip_address()
        given = WorkerPlan.from_json(plan)
        self._worker = ClusterWorker(
            ActorState(
                name_of(number),
                node=f"{socket.gethostname()} ({host})",
                version=__version__,
                plan=given.digest,
            ),
            given.prepared,
            lambda before: free_address(host, given.ports, before),
        )
        self._worker.start()

    async def state(self) -> dict[str, Any]:
        """Return the fields of ActorState."""
        return asdict(self._worker.state)

    async def drain(self) -> None:
        """Let the process finish what runs, then remove this actor for good."""
        await self._worker.drain()
        _ray().actor.exit_actor()


def _ray() -> Any:
    """Return Ray, which the process that this runs in has imported; its types are partial."""
    return importlib.import_module("ray")


class ClusterWorker:
    """One worker of the cluster: its model is prepared, then its process is supervised."""

    def __init__(
        self,
        identity: ActorState,
        prepare: Callable[[], PreparedWorker],
        next_address: Callable[[str], str],
        *,
        command: Sequence[str] = COMMAND,
        backoff_s: tuple[float, float] = (0.5, 30.0),
        heartbeat_timeout_s: float = 10.0,
    ) -> None:
        """Nothing is started yet."""
        self._identity = identity
        self._prepare = prepare
        self._next_address = next_address
        self._command = command
        self._backoff_s = backoff_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._starting: asyncio.Task[None] | None = None
        self._connection: WorkerConnection | None = None
        self._supervisor: Supervisor | None = None
        self._refused = ""
        self._draining = self._ended = False

    def start(self) -> None:
        """Begin; `state` tells how far it is."""
        self._starting = asyncio.create_task(self._start())

    @property
    def state(self) -> ActorState:
        """The state as it is now."""
        phase, reason = self._phase()
        made = replace(self._identity, phase=phase, reason=reason)
        running = self._supervisor
        if running is None or phase in ("ended", "refused"):
            return made
        return replace(made, address=running.address, pid=running.pid, restarts=running.restarts)

    def _phase(self) -> tuple[Phase, str]:
        """Return the phase, and why the worker is not ready."""
        supervisor, connection = self._supervisor, self._connection
        if self._ended:
            return "ended", "it was drained"
        if self._refused:
            return "refused", self._refused
        if self._draining:
            return "draining", "it finishes what runs"
        if supervisor is None or connection is None:
            return "preparing", "the model is looked for"
        if supervisor.pid is None and supervisor.last_end:
            return "restarting", supervisor.last_end
        return ("ready", "") if connection.ready is not None else ("loading", connection.reason)

    async def drain(self) -> None:
        """Let the process finish what runs; return when it has ended. No other is started."""
        self._draining = True
        if self._starting is not None:
            await self._starting
        if self._supervisor is not None:
            await self._supervisor.drain()
        if self._connection is not None:
            await self._connection.close()
        self._ended = True

    async def _start(self) -> None:
        try:
            prepared = await asyncio.to_thread(self._prepare)
            if self._draining:
                return
            self._connection = WorkerConnection(
                heartbeat_timeout_s=self._heartbeat_timeout_s, secret=prepared.secret
            )
            self._supervisor = Supervisor(
                self._connection,
                prepared.at,
                on_refused=self._refuse,
                command=self._command,
                backoff_s=self._backoff_s,
                next_address=self._next_address,
                environment=_environment(),
            )
            await self._supervisor.start()
        except KvstitchError as error:
            self._refuse(error.message)
        except Exception as error:
            log.exception("the worker cannot be started")
            self._refuse(f"it cannot be started: {error}")

    def _refuse(self, reason: str) -> None:
        self._refused = reason


def _environment() -> dict[str, str]:
    """Return variables with which a process loads the same kvstitch as this one."""
    search_path = os.pathsep.join(filter(None, sys.path))
    return {**resources.TORCH_ENVIRONMENT, "PYTHONPATH": search_path, "PYTHONSAFEPATH": "1"}


def free_address(host: str, ports: tuple[int, int] | None, before: str = "") -> str:
    """Return tcp://HOST:PORT with a port that is free now."""
    candidates: Iterable[int] = (0,) if ports is None else range(ports[0], ports[1] + 1)
    earlier = before.rpartition(":")[2]
    for port in (*((int(earlier),) if earlier else ()), *candidates):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ binds
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise InvalidSetting(f"no worker can listen on {host}: {error.strerror}") from error
            written = f"[{host}]" if ":" in host else host
            return f"tcp://{written}:{probe.getsockname()[1]}"
    if ports is None:
        raise InvalidSetting(f"no port of {host} is free")
    raise InvalidSetting(
        f"all ports {ports[0]}-{ports[1]} of {host} are taken: give more (--ports)"
    )
