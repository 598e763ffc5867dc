"""The worker's calls over a socket: answers, explanations, precompute, purges, the gate."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import TypeVar

from kvstitch.encryption.keyring import EncryptionError
from kvstitch.service.errors import Overloaded, WorkerUnavailable, from_code
from kvstitch.service.gateway.worker_client.connection import RETRY_AFTER_S, WorkerConnection
from kvstitch.service.messages.replies import (
    Done,
    Explained,
    Failed,
    GateStates,
    HandedOver,
    Precomputed,
    Purged,
    TokenItem,
)
from kvstitch.service.messages.reports import Forecast
from kvstitch.service.messages.requests import (
    Abort,
    AskGate,
    AskHoldings,
    Compared,
    Explain,
    Generate,
    Message,
    Precompute,
    Prefetch,
    Purge,
)

Event = TokenItem | HandedOver | Done | Failed
R = TypeVar("R", Explained, Purged, GateStates)


class WorkerClient(WorkerConnection):
    """Every call raises WorkerUnavailable while the worker is not ready."""

    async def submit(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Generate an answer. Closing or cancelling the generator aborts it in the worker. Yields
        its tokens or where its KV is, then exactly one Done or Failed, whatever happens."""
        with self.call(request.id, request) as queue:
            ended, tokens = False, 0
            try:
                while not ended:
                    event = await queue.get()
                    tokens += isinstance(event, TokenItem)
                    if isinstance(event, TokenItem | HandedOver | Done | Failed):
                        ended = isinstance(event, Done | Failed)
                        yield event
            finally:
                unread = [queue.get_nowait() for _ in range(queue.qsize())]
                if not ended and not any(isinstance(e, Done | Failed) for e in unread):
                    # What still comes for it is counted from here on.
                    self._left[request.id] = tokens + len(unread)
                    self.abort(request.id, "disconnect")

    async def explain(self, request: Generate) -> Forecast:
        """Return what a request would take."""
        return (await self._ask(request.id, Explain(request), Explained)).forecast

    def abort(self, request_id: str, reason: str) -> None:
        """Stop a sequence, whose stream then ends with the worker's Done, or a precompute call."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(Abort(request_id, reason))

    def prefetch(self, message: Prefetch) -> None:
        """Send a hint; it is dropped silently if it cannot be sent."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(message)

    def compared(self, message: Compared) -> None:
        """Tell the gate; it is dropped silently if it cannot be sent."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(message)

    def ask_holdings(self) -> None:
        """Ask what its memory tier holds; afterwards `on_holdings` is called for every change."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(AskHoldings())

    async def precompute(self, message: Precompute) -> AsyncGenerator[Precomputed, None]:
        """Compute and store the KV of chunks; yields one reply per chunk, as it is done. Raises the
        error that the worker reports. Closing or cancelling the generator keeps the worker from
        storing those that are left."""
        await self._make_key(message.tenant)
        with self.call(message.id, message) as queue:
            left = len(message.documents)
            try:
                while left:
                    reply = await queue.get()
                    if isinstance(reply, Failed):
                        left = 0
                        raise from_code(reply.code, reply.message, reply.field)
                    if isinstance(reply, Precomputed):
                        left -= 1
                        yield reply
            finally:
                if left:
                    self.abort(message.id, "disconnect")

    async def _make_key(self, tenant: str) -> None:
        """Have a key for what is stored of a tenant: the worker itself makes none."""
        if self._keys is not None:
            try:
                await asyncio.to_thread(self._keys.current, tenant)
            except EncryptionError as error:
                why = f"the tenant {tenant!r} has no key: {error}"
                raise WorkerUnavailable(why, retry_after_s=RETRY_AFTER_S) from error

    async def purge(self, message: Purge) -> Purged:
        """Delete the KV of chunks in every tier."""
        return await self._ask(message.id, message, Purged)

    async def gate(self, *, reset: str | None = None) -> GateStates:
        """Return the states of methods at the correctness gate. `reset`: a fusion method whose
        checks are forgotten first; "": all; None: none."""
        message = AskGate(uuid.uuid4().hex, reset)
        return await self._ask(message.id, message, GateStates)

    async def _ask(self, call_id: str, message: Message, kind: type[R]) -> R:
        """Send a message that has one reply. Raises the error that the worker reports."""
        with self.call(call_id, message) as queue:
            reply = await queue.get()
        if isinstance(reply, kind):
            return reply
        if isinstance(reply, Failed):
            raise from_code(reply.code, reply.message, reply.field)
        asked, got = type(message).__name__, type(reply).__name__
        raise WorkerUnavailable(f"the worker answered {asked} with {got}")
