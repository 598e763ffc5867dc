"""What /status and the metrics say of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from service.gateway.prometheus import GatewayMetrics
from service.gateway.worker_client.connection import WorkerConnection
from service.shared.metrics import WORKER_STATES


@dataclass(frozen=True)
class WorkerState:
    """One worker process. Fields are None while they are not known.

    Attributes:
        pid: of the process, where the gateway started it.
        reason: why it is not ready; None if it is.
        pool_free: share of its KV pool that is free.
        running: sequences that it computes.
        waiting: sequences that wait for their start.
        address: where it runs by itself; None: the gateway started it.
        draining: whether it is about to end, and gets no new requests.
    """

    pid: int | None
    reason: str | None
    pool_free: float | None
    running: int | None
    waiting: int | None
    address: str | None = None
    draining: bool = False

    @property
    def name(self) -> str:
        """One of `service.shared.metrics.WORKER_STATES`."""
        return "draining" if self.draining else "ready" if self.reason is None else "not_ready"

    @classmethod
    def of(
        cls, connection: WorkerConnection, *, pid: int | None = None, address: str | None = None
    ) -> WorkerState:
        """Return what its connection knows of it."""
        ready = connection.ready is not None
        stats = connection.stats if ready else None
        return cls(
            pid=pid,
            reason=None if ready else connection.reason,
            pool_free=None if stats is None else stats.pool_free,
            running=None if stats is None else stats.running,
            waiting=None if stats is None else stats.waiting,
            address=address,
            draining=connection.draining,
        )


def count_by_state(metrics: GatewayMetrics, states: Callable[[], Sequence[WorkerState]]) -> None:
    """Have the metrics count the workers of each state, at every scrape."""

    def count(name: str) -> float:
        return sum(state.name == name for state in states())

    for name in WORKER_STATES:
        metrics.workers.labels(name).set_function(partial(count, name))
