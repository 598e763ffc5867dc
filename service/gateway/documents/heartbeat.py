"""Gives signs of life to the other gateways, and hears of work that they have left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.membership import Membership, Signs

BEAT_S = 1.0


class Heartbeat:
    """A loop between start() and close().

    Args:
        membership: Joined.
        on_work: Called after each sign of life that showed work for this gateway.
        on_forgotten: Called with what to say when the others have forgotten this gateway.
    """

    def __init__(
        self,
        membership: Membership,
        on_work: Callable[[Signs], None],
        on_forgotten: Callable[[str], None],
    ) -> None:
        self._membership = membership
        self._on_work = on_work
        self._on_forgotten = on_forgotten
        self._loop = BackgroundLoop("heartbeat", self._step, BEAT_S)

    def start(self) -> None:
        self._loop.start()

    async def close(self) -> None:
        """Leave: what this gateway had taken goes on with others."""
        await self._loop.close()
        await asyncio.to_thread(self._membership.leave)

    async def _step(self) -> bool:
        signs = await asyncio.to_thread(self._membership.beat)
        if not signs.member:
            self._on_forgotten(
                "this gateway gave no sign of life for so long that deletions no longer waited for "
                "it: it ends, and empties its KV folder at the next start"
            )
        self._on_work(signs)
        return False
