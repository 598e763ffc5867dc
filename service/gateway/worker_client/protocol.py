"""The worker as the rest of the gateway sees it; `client` has the implementation."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from service.messages.replies import (
    Done,
    Failed,
    GateStates,
    Precomputed,
    Purged,
    Ready,
    Stats,
    TokenItem,
)
from service.messages.reports import Forecast
from service.messages.requests import Generate, Precompute, Prefetch, Purge

Event = TokenItem | Done | Failed


class Worker(Protocol):
    """One worker process. Every call raises WorkerUnavailable while the worker is not ready."""

    @property
    def ready(self) -> Ready | None:
        """What the worker said when it was ready; None while it is not."""
        ...

    @property
    def stats(self) -> Stats | None:
        """Its latest heartbeat; None before the first."""
        ...

    @property
    def reason(self) -> str:
        """Why the worker is not ready."""
        ...

    def require(self) -> Ready:
        """Return what `ready` holds; else WorkerUnavailable."""
        ...

    def submit(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Generate an answer.

        Yields:
            Its tokens, then exactly one Done or Failed.
        """
        ...

    async def explain(self, request: Generate) -> Forecast:
        """Return what a request would take."""
        ...

    def abort(self, request_id: str, reason: str) -> None:
        """End a request; its stream then ends with the worker's Done."""
        ...

    def prefetch(self, message: Prefetch) -> None:
        """Hint that these chunks will be needed."""
        ...

    def precompute(self, message: Precompute) -> AsyncGenerator[Precomputed, None]:
        """Compute and store the KV of chunks.

        Yields:
            One reply per chunk, as it is done.
        """
        ...

    async def purge(self, message: Purge) -> Purged:
        """Delete the KV of chunks in every tier.

        Raises:
            WorkerUnavailable: A worker may still hold some; one whose process has ended holds none.
        """
        ...

    async def gate(self, *, reset: str | None = None) -> GateStates:
        """Return the states of methods at the correctness gate.

        Args:
            reset: A fusion method whose checks are forgotten first; "": all; None: none.
        """
        ...

    async def wait_ready(self) -> Ready:
        """Wait until the worker is ready."""
        ...
