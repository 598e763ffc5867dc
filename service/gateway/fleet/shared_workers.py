"""The workers of a gateway that starts none: they run by themselves, and others use them, too."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import logging
from collections.abc import Callable
from functools import partial

from encryption.keyring import Keyring
from service.errors import InvalidSetting, Overloaded
from service.gateway.fleet.discovery import Source, source_of
from service.gateway.fleet.known_workers import KnownWorkers
from service.gateway.fleet.member import Member
from service.gateway.fleet.worker_pool import WorkerPool
from service.gateway.fleet.worker_state import WorkerState
from service.gateway.prometheus import GatewayMetrics
from service.gateway.worker_client.client import WorkerClient
from service.gateway.worker_client.protocol import Worker
from service.messages.replies import Holdings, ModelInfo, Ready, Stats
from service.messages.requests import Hello
from service.settings import Settings
from service.shared import fleet_secret

logger = logging.getLogger(__name__)

AGAIN_S = 5.0  # after which a source that failed is asked again


class SharedWorkers:
    """Workers that a source lists, for as long as it lists them.

    Args:
        deletions: Asked at the start for a secret that only those gateways have that make one
            another's deletions.
        heartbeat_timeout_s: A worker that is silent for so long counts as gone.
        on_count: Called with the number of ready workers when it changes.
        source: Of addresses; by default the one that the settings name.
        keys: Of tenants, for what workers store; None: it is in the clear.

    Attributes:
        worker: what the rest of the gateway talks to.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: GatewayMetrics,
        *,
        deletions: Callable[[], str],
        heartbeat_timeout_s: float = 10.0,
        on_count: Callable[[int], None] = lambda ready: None,
        source: Source | None = None,
        keys: Keyring | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._deletions = deletions
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._on_count = on_count
        self._keys = keys
        self._source = source or source_of(settings.worker_addresses)
        self._numbers = itertools.count()
        self._members: dict[str, Member] = {}  # by address
        self._refused: dict[str, str] = {}  # addresses that may not be spoken to, and why
        self._model: ModelInfo | None = None  # of the first that was ready
        self._hello = Hello()
        self._known: KnownWorkers | None = None
        self._watching: asyncio.Task[None] | None = None
        self._pool = WorkerPool(
            [],
            settings.routing,
            metrics,
            slower_tiers=settings.has_slower_tiers,
            prefix_cache=settings.prefix_cache,
            none_known=f"no worker is known at {settings.worker_addresses}",
            absent=lambda: None if self._known is None else self._known.absent(),
        )
        self.worker: Worker = self._pool

    @property
    def first_pid(self) -> int | None:
        """None: no process is this gateway's."""
        return None

    def states(self) -> list[WorkerState]:
        """Return what is known of every worker that is listed."""
        refused = [
            WorkerState(None, why, None, None, None, address)
            for address, why in self._refused.items()
        ]
        return refused + [
            WorkerState.of(member.client, address=address)
            for address, member in self._members.items()
        ]

    async def start(self) -> None:
        """Begin; does not wait until a worker is ready."""
        lease_s = self._settings.worker_lease_s
        domain = hmac.new(self._deletions().encode(), b"deletions", hashlib.sha256).hexdigest()
        self._hello = Hello(domain, lease_s)
        self._known = await asyncio.to_thread(KnownWorkers, self._settings.data_dir, lease_s)
        self._watching = asyncio.create_task(self._watch())

    def push_keys(self) -> None:
        """Tell the workers at once that the keys of tenants changed."""
        for member in self._members.values():
            with contextlib.suppress(Overloaded):  # the next message brings them
                member.client.push_keys()

    async def close(self) -> None:
        """Leave the workers to others: they run on."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for member in self._members.values():
            await member.client.close()

    # -- who is listed ----------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                async for addresses in self._source():
                    await self._list(addresses)
                return  # a list that never changes
            except Exception:
                logger.exception("workers cannot be looked up; again in %.0f s", AGAIN_S)
            await asyncio.sleep(AGAIN_S)

    async def _list(self, addresses: list[str]) -> None:
        assert self._known is not None
        self._refused.clear()
        for address in [known for known in self._members if known not in addresses]:
            await self._leave(address)
        new = [address for address in addresses if address not in self._members]
        if new:
            self._known.joined(new)
        for address in new:
            self._join(address)

    def _join(self, address: str) -> None:
        try:
            fleet_secret.require_secret(address, self._settings.fleet_secret)
        except InvalidSetting as error:
            self._refused[address] = error.message
            logger.error("a worker is left alone: %s", error.message)
            return
        number = next(self._numbers)
        client = WorkerClient(
            heartbeat_timeout_s=self._heartbeat_timeout_s,
            on_stats=partial(self._on_stats, address),
            on_change=partial(self._on_change, number, address),
            on_left=self._metrics.tokens_after_leaving.observe,
            on_holdings=partial(self._on_holdings, number),
            hello=self._hello,
            secret=self._settings.fleet_secret,
            keys=self._keys,
            refuse=partial(self._unlike, address),
        )
        client.connect(address)
        logger.info("a worker is listed at %s", address)
        self._members[address] = Member(number, client)
        self._pool.join(self._members[address])

    async def _leave(self, address: str) -> None:
        assert self._known is not None
        logger.info("the worker at %s is not listed any more", address)
        member = self._members.pop(address)
        await member.client.close()  # what it was asked for ends, or moves
        self._pool.leave(member.number)
        self._known.left(address, gone=member.client.gone)

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

    def _on_stats(self, address: str, stats: Stats) -> None:
        self._metrics.worker.update(stats.values, label(address))

    def _on_change(self, number: int, address: str, up: bool) -> None:
        ready = sum(member.client.ready is not None for member in self._members.values())
        self._metrics.worker_up.set(int(ready > 0))
        self._metrics.workers_ready.set(ready)
        if not up:
            self._metrics.worker.forget(label(address))
        self._pool.changed(number, up)
        self._on_count(ready)

    def _on_holdings(self, number: int, holdings: Holdings) -> None:
        self._pool.reported(number, holdings)


def label(address: str) -> str:
    """Return the worker in metrics: the same whenever it comes back."""
    return address.partition("://")[2]
