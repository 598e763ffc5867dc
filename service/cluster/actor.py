"""The Ray actor: supervises one worker process. It runs on the worker's machine."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
import sys
from typing import Any

from service import __version__
from service.cluster.actor_state import ActorState
from service.cluster.addresses import free_address
from service.cluster.names import name_of
from service.cluster.plan import WorkerPlan
from service.cluster.supervision import SupervisedWorker
from service.gateway.data_folder import UMASK


class WorkerActor:
    """`ray_cluster` makes a detached actor of it. Ray calls its methods on one event loop."""

    def __init__(self, number: int, plan: str) -> None:
        """Starts the worker, also when Ray brings the actor back on another machine.

        Args:
            number: In the actor's name.
            plan: A WorkerPlan as JSON.
        """
        ray = _ray()
        os.umask(UMASK)  # the worker inherits it
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        host: str = ray.util.get_node_ip_address()
        given = WorkerPlan.from_json(plan)
        self._worker = SupervisedWorker(
            ActorState(
                name_of(number),
                node=f"{socket.gethostname()} ({host})",
                version=__version__,
                plan=given.digest,
            ),
            given.prepared,
            lambda before: free_address(host, given.ports, before),
        )
        self._running = asyncio.get_running_loop().create_task(self._worker.run())

    async def state(self) -> dict[str, Any]:
        """The fields of ActorState."""
        return self._worker.state.fields()

    async def changed(self, seen: int, patience_s: float) -> tuple[int, dict[str, Any]]:
        """The state's revision and fields, as soon as it is not that of `seen`."""
        revision, state = await self._worker.changed(seen, patience_s)
        return revision, state.fields()

    async def drain(self) -> None:
        """Lets the process finish what runs, then removes this actor for good."""
        await self._worker.drain()
        await self._running
        _ray().actor.exit_actor()


def _ray() -> Any:
    """Ray's own process, in which this runs, has imported it; its types are partial."""
    return importlib.import_module("ray")
