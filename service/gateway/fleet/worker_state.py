"""What /status says of one worker."""

from __future__ import annotations

from dataclasses import dataclass

from service.gateway.worker_client.connection import WorkerConnection


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

    @classmethod
    def of(
        cls, connection: WorkerConnection, *, pid: int | None = None, address: str | None = None
    ) -> WorkerState:
        """What its connection knows of it."""
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
