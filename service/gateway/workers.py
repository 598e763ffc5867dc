"""The workers of one gateway: processes that it starts, or those that run by themselves.

started    by the gateway, each with a supervisor; they end with it
listed     by a source of addresses, for as long as it lists them; other gateways use them, too

One process that the gateway starts is spoken to directly, all others through a pool.
"""

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvstitch.encryption.keyring import Keyring
from kvstitch.service.errors import InvalidSetting, Overloaded, WorkerUnavailable
from kvstitch.service.gateway.fleet.discovery import KnownWorkers, Source, source_of
from kvstitch.service.gateway.fleet.member import Member, WorkerState
from kvstitch.service.gateway.fleet.worker_pool import Worker, WorkerPool
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.worker_client.client import WorkerClient
from kvstitch.service.gateway.worker_client.supervisor import COMMAND, Supervisor
from kvstitch.service.messages.replies import Holdings, ModelInfo, Ready, Stats
from kvstitch.service.messages.requests import Hello
from kvstitch.service.settings import Settings
from kvstitch.service.shared import fleet_secret
from kvstitch.service.shared.worker_settings import WorkerSettings

logger = logging.getLogger(__name__)

AGAIN_S = 5.0  # after which a source that failed is asked again


@dataclass(frozen=True)
class ProcessOptions:
    """How worker processes are started and watched."""

    command: Sequence[str] = COMMAND  # starts one
    address: str = ""  # of the one worker, which runs already; empty: it is started and supervised
    heartbeat_timeout_s: float = 10.0  # silence after which one counts as gone
    # First and longest pause before one is started again.
    restart_backoff_s: tuple[float, float] = (0.5, 30.0)


OWN_PROCESSES = ProcessOptions()


class Workers:
    """All workers of one gateway.

    Args:
        worker_settings: Makes the settings of a process that is started, for number and address.
        on_refused: Called with the reason if such a process will never start.
        deletions: Returns the database's secret, of which `Hello.domain` is a hash: gateways of one
            database carry out deletions for one another, and have the same domain.
        on_count: Called with the number of ready workers when it changes.
        source: Of the addresses of listed workers; by default the one that the settings name.
        keys: Of tenants, for what workers store; None: it is in the clear.

    Attributes:
        worker: What the rest of the gateway talks to.
    """

    def __init__(
        self,
        settings: Settings,
        options: ProcessOptions,
        metrics: GatewayMetrics,
        *,
        worker_settings: Callable[[int, str], WorkerSettings],
        on_refused: Callable[[str], None],
        deletions: Callable[[], str] = lambda: "",
        on_count: Callable[[int], None] = lambda ready: None,
        source: Source | None = None,
        keys: Keyring | None = None,
    ) -> None:
        self._settings = settings
        self._options = options
        self._metrics = metrics
        self._deletions = deletions
        self._on_count = on_count
        self._keys = keys
        addresses = settings.worker_addresses
        self._source = source or (source_of(addresses) if addresses else None)
        self._members: dict[str, Member] = {}  # by their names in metrics
        self._numbers = itertools.count()
        self._refused: dict[str, str] = {}  # addresses that may not be spoken to, and why
        self._model: ModelInfo | None = None  # of the first listed worker that was ready
        self._hello = Hello()
        self._known: KnownWorkers | None = None
        self._watching: asyncio.Task[None] | None = None
        self._pool: WorkerPool | None = None
        if addresses or settings.workers > 1:
            self._pool = WorkerPool(
                [],
                settings.routing,
                metrics,
                slower_tiers=settings.has_slower_tiers,
                prefix_cache=settings.prefix_cache,
                none_known=f"no worker is known at {addresses}",
                absent=lambda: None if self._known is None else self._known.absent(),
            )
        for number in range(0 if addresses else settings.workers):
            client = self._client(number, str(number))
            supervisor = Supervisor(
                client,
                partial(worker_settings, number),
                on_refused=on_refused,
                on_restart=metrics.worker_restarts.inc,
                command=options.command,
                backoff_s=options.restart_backoff_s,
            )
            self._add(str(number), Member(number, client, supervisor))
        self.worker: Worker = self._pool or self._members["0"].client

    @property
    def first_pid(self) -> int | None:
        """Process id of the first worker; None if the gateway has started none."""
        return next((member.pid for member in self._members.values()), None)

    def states(self) -> list[WorkerState]:
        """Return what is known of every worker."""
        refused = [
            WorkerState(None, why, None, None, None, address)
            for address, why in self._refused.items()
        ]
        return refused + [member.state() for member in self._members.values()]

    async def start(self) -> None:
        """Begin; does not wait until a worker is ready."""
        if self._options.address:
            self._members["0"].client.connect(self._options.address)
        elif self._source is None:
            for member in self._members.values():
                assert member.supervisor is not None
                await member.supervisor.start()
        else:
            lease_s = self._settings.worker_lease_s
            domain = hmac.new(self._deletions().encode(), b"deletions", hashlib.sha256).hexdigest()
            self._hello = Hello(domain, lease_s)
            self._known = await asyncio.to_thread(KnownWorkers, self._settings.data_dir, lease_s)
            self._watching = asyncio.create_task(self._watch(self._source, self._known))

    def push_keys(self) -> None:
        """Tell the workers at once that the keys of tenants changed."""
        for member in self._members.values():
            # Where that fails, the next message brings them.
            with contextlib.suppress(Overloaded, WorkerUnavailable):
                member.client.send()

    async def close(self) -> None:
        """Ask processes of this gateway to finish, and end those that do not; others run on."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        members = list(self._members.values())
        await asyncio.gather(*(m.supervisor.stop() for m in members if m.supervisor is not None))
        for member in members:
            await member.client.close()

    def _client(self, number: int, name: str, **given: Any) -> WorkerClient:
        return WorkerClient(
            heartbeat_timeout_s=self._options.heartbeat_timeout_s,
            on_stats=partial(self._on_stats, name),
            on_change=partial(self._on_change, number, name),
            on_left=self._metrics.tokens_after_leaving.observe,
            on_holdings=partial(self._on_holdings, number),
            keys=self._keys,
            **given,
        )

    def _add(self, name: str, member: Member) -> None:
        self._members[name] = member
        if self._pool is not None:
            self._pool.join(member)

    # -- those that are listed --------------------------------------------------------------------

    async def _watch(self, source: Source, known: KnownWorkers) -> None:
        while True:
            try:
                async for addresses in source():
                    await self._list(addresses, known)
                return  # a list that never changes
            except Exception:
                logger.exception("workers cannot be looked up; again in %.0f s", AGAIN_S)
            await asyncio.sleep(AGAIN_S)

    async def _list(self, addresses: list[str], known: KnownWorkers) -> None:
        self._refused.clear()
        for name, member in list(self._members.items()):
            assert self._pool is not None and member.address is not None
            if member.address not in addresses:
                logger.info("the worker at %s is not listed any more", member.address)
                del self._members[name]
                await member.client.close()  # what it was asked for ends, or moves
                self._pool.leave(member.number)
                known.left(member.address, gone=member.client.gone)
        new = [address for address in addresses if label(address) not in self._members]
        if new:
            known.joined(new)
        for address in new:
            self._join(address)

    def _join(self, address: str) -> None:
        secret = self._settings.fleet_secret
        try:
            fleet_secret.require_secret(address, secret)
        except InvalidSetting as error:
            self._refused[address] = error.message
            logger.error("a worker is left alone: %s", error.message)
            return
        number, name = next(self._numbers), label(address)
        refuse = partial(self._unlike, address)
        client = self._client(number, name, hello=self._hello, secret=secret, refuse=refuse)
        client.connect(address)
        logger.info("a worker is listed at %s", address)
        self._add(name, Member(number, client, address=address))

    def _unlike(self, address: str, ready: Ready) -> str | None:
        """Return why a worker cannot stand beside the others."""
        first = self._model = self._model or ready.model
        if ready.model.fingerprint == first.fingerprint:
            return None
        return (
            f"the worker at {address} serves {ready.model.name} ({ready.model.fingerprint}), the "
            f"others {first.name} ({first.fingerprint}): one gateway serves one model"
        )

    # -- what workers say -------------------------------------------------------------------------

    def _on_stats(self, name: str, stats: Stats) -> None:
        self._metrics.worker.update(stats.values, name)

    def _on_change(self, number: int, name: str, up: bool) -> None:
        ready = sum(member.client.ready is not None for member in self._members.values())
        self._metrics.worker_up.set(int(ready > 0))
        self._metrics.workers_ready.set(ready)
        if not up:
            self._metrics.worker.forget(name)
        if self._pool is not None:
            self._pool.changed(number, up)
        self._on_count(ready)

    def _on_holdings(self, number: int, holdings: Holdings) -> None:
        if self._pool is not None:
            self._pool.reported(number, holdings)


def label(address: str) -> str:
    """Return the name of a listed worker in metrics: the same whenever it comes back."""
    return address.partition("://")[2]
