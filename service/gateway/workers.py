"""The worker processes of one gateway: one, or several behind a pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from encryption.keyring import Keyring
from service.errors import Overloaded
from service.gateway.fleet.member import Member
from service.gateway.fleet.worker_pool import WorkerPool
from service.gateway.fleet.worker_state import WorkerState
from service.gateway.prometheus import GatewayMetrics
from service.gateway.worker_client.client import WorkerClient
from service.gateway.worker_client.protocol import Worker
from service.gateway.worker_client.supervisor import COMMAND, Supervisor
from service.messages.replies import Holdings, Stats
from service.settings import Settings
from service.shared.worker_settings import WorkerSettings


@dataclass(frozen=True)
class ProcessOptions:
    """How worker processes are started and watched.

    Attributes:
        command: Starts one.
        address: Of a worker that runs already; empty: they are started and supervised.
        heartbeat_timeout_s: Silence after which one counts as gone.
        restart_backoff_s: First and longest pause before one is started again.
    """

    command: Sequence[str] = COMMAND
    address: str = ""
    heartbeat_timeout_s: float = 10.0
    restart_backoff_s: tuple[float, float] = (0.5, 30.0)


OWN_PROCESSES = ProcessOptions()


class Workers:
    """All workers of one gateway."""

    def __init__(
        self,
        settings: Settings,
        options: ProcessOptions,
        metrics: GatewayMetrics,
        *,
        worker_settings: Callable[[int, str], WorkerSettings],
        on_refused: Callable[[str], None],
        keys: Keyring | None = None,
    ) -> None:
        self._metrics = metrics
        self._address = options.address
        self._clients = [
            WorkerClient(
                heartbeat_timeout_s=options.heartbeat_timeout_s,
                on_stats=partial(self._on_stats, number),
                on_change=partial(self._on_change, number),
                on_left=metrics.tokens_after_leaving.observe,
                on_holdings=partial(self._on_holdings, number),
                keys=keys,
            )
            for number in range(settings.workers)
        ]
        self._supervisors = [
            Supervisor(
                client,
                partial(worker_settings, number),
                on_refused=on_refused,
                on_restart=metrics.worker_restarts.inc,
                command=options.command,
                backoff_s=options.restart_backoff_s,
            )
            for number, client in enumerate(self._clients)
        ]
        pairs = enumerate(zip(self._clients, self._supervisors, strict=True))
        self._pool = (
            None
            if settings.workers == 1
            else WorkerPool(
                [Member(number, client, supervisor) for number, (client, supervisor) in pairs],
                settings.routing,
                metrics,
                slower_tiers=settings.has_slower_tiers,
                prefix_cache=settings.prefix_cache,
            )
        )
        self.worker: Worker = self._pool or self._clients[0]

    @property
    def first_pid(self) -> int | None:
        """Process id of the first worker; None if none was started."""
        return self._supervisors[0].pid

    def states(self) -> list[WorkerState]:
        """Return what is known of every worker."""
        pairs = zip(self._clients, self._supervisors, strict=True)
        return [WorkerState.of(client, pid=supervisor.pid) for client, supervisor in pairs]

    async def start(self) -> None:
        """Begin; does not wait until a worker is ready."""
        if self._address:
            self._clients[0].connect(self._address)
            return
        for supervisor in self._supervisors:
            await supervisor.start()

    def push_keys(self) -> None:
        """Tell the workers at once that the keys of tenants changed."""
        for client in self._clients:
            with contextlib.suppress(Overloaded):  # the next message brings them
                client.push_keys()

    async def close(self) -> None:
        """Ask all to finish, and end those that do not."""
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        for client in self._clients:
            await client.close()

    def _on_stats(self, number: int, stats: Stats) -> None:
        self._metrics.worker.update(stats.values, str(number))

    def _on_change(self, number: int, up: bool) -> None:
        ready = sum(client.ready is not None for client in self._clients)
        self._metrics.worker_up.set(int(ready > 0))
        self._metrics.workers_ready.set(ready)
        if not up:
            self._metrics.worker.forget(str(number))
        if self._pool is not None:
            self._pool.changed(number, up)

    def _on_holdings(self, number: int, holdings: Holdings) -> None:
        if self._pool is not None:
            self._pool.reported(number, holdings)
