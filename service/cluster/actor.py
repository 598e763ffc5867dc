"""The Ray actor: keeps one worker process alive. It runs on the worker's machine."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
from typing import Any

from service import __version__
from service.cluster.actor_state import ActorState, name_of
from service.cluster.plan import WorkerPlan
from service.cluster.worker import ClusterWorker, free_address
from service.gateway.data_folder import UMASK


class WorkerActor:
    """`ray_cluster` makes a detached actor of it. Ray calls its methods on one event loop."""

    def __init__(self, number: int, plan: str) -> None:
        """Start the worker, also when Ray brings the actor back on another machine.

        Args:
            number: In the actor's name.
            plan: A WorkerPlan as JSON.
        """
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
        return self._worker.state.fields()

    async def drain(self) -> None:
        """Let the process finish what runs, then remove this actor for good."""
        await self._worker.drain()
        _ray().actor.exit_actor()


def _ray() -> Any:
    """Return Ray, which the process that this runs in has imported; its types are partial."""
    return importlib.import_module("ray")
