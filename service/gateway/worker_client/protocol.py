"""The worker as the use cases see it. Knows no socket; `client` has the real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from service.messages import (
    Chunk,
    Done,
    Failed,
    Forecast,
    GateStates,
    Generate,
    Precomputed,
    Prefetch,
    Purged,
    Ready,
    TokenItem,
)

Event = TokenItem | Done | Failed


class Worker(Protocol):
    """What the use cases need of the worker."""

    @property
    def ready(self) -> Ready | None: ...

    def require(self) -> Ready:
        """Raises WorkerUnavailable."""
        ...

    def submit(self, request: Generate) -> AsyncGenerator[Event, None]: ...

    async def explain(self, request: Generate) -> Forecast: ...

    def abort(self, request_id: str, reason: str) -> None: ...

    def prefetch(self, message: Prefetch) -> None: ...

    def precompute(
        self, system: list[int], chunks: Sequence[Chunk], prefix_mode: str, tenant: str
    ) -> AsyncGenerator[Precomputed, None]: ...

    async def purge(
        self, system: list[int], chunks: Sequence[Chunk], prefix_mode: str, tenant: str
    ) -> Purged: ...

    async def gate(self, *, reset: str | None = None) -> GateStates:
        """How methods stand; `reset` one of them first, "" for all."""
        ...

    async def wait_ready(self) -> Ready: ...
