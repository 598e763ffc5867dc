"""The worker's calls over a socket: answers, explanations, precompute, purges, the gate."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Sequence

from service.errors import Overloaded, WorkerUnavailable, from_code
from service.gateway.worker_client.connection import WorkerConnection
from service.gateway.worker_client.protocol import Event
from service.messages.replies import (
    Done,
    Explained,
    Failed,
    GateStates,
    Precomputed,
    Purged,
    TokenItem,
)
from service.messages.reports import Forecast
from service.messages.requests import (
    Abort,
    AskGate,
    AskHoldings,
    ChunkTokens,
    Explain,
    Generate,
    Precompute,
    Prefetch,
    Purge,
)


class WorkerClient(WorkerConnection):
    """The implementation of `protocol.Worker`."""

    async def submit(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Generate an answer. Closing or cancelling the generator aborts it in the worker.

        Yields:
            Its tokens, then exactly one Done or Failed, whatever happens.
        """
        with self.call(request.id, request) as queue:
            ended, tokens = False, 0
            try:
                while not ended:
                    event = await queue.get()
                    tokens += isinstance(event, TokenItem)
                    if isinstance(event, TokenItem | Done | Failed):
                        ended = not isinstance(event, TokenItem)
                        yield event
            finally:
                unread = [queue.get_nowait() for _ in range(queue.qsize())]
                if not ended and all(isinstance(event, TokenItem) for event in unread):
                    self.note_left(request.id, tokens + len(unread))
                    self.abort(request.id, "disconnect")

    async def explain(self, request: Generate) -> Forecast:
        """What a request would take. Raises the error that the worker reports."""
        with self.call(request.id, Explain(request)) as queue:
            reply = await queue.get()
            if isinstance(reply, Explained):
                return reply.forecast
            if isinstance(reply, Failed):
                raise from_code(reply.code, reply.message, reply.field)
            raise WorkerUnavailable(f"the worker explained with {type(reply).__name__}")

    def abort(self, request_id: str, reason: str) -> None:
        """Stop a sequence, whose stream then ends with the worker's Done, or a precompute call."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(Abort(request_id, reason))

    def prefetch(self, message: Prefetch) -> None:
        """Send a hint; it is dropped silently if it cannot be sent."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(message)

    def ask_holdings(self) -> None:
        """Ask what its memory tier holds; afterwards `on_holdings` is called for every change."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(AskHoldings())

    async def precompute(
        self,
        system: list[int],
        chunks: Sequence[ChunkTokens],
        prefix_mode: str,
        tenant: str,
        lora: str = "",
    ) -> AsyncGenerator[Precomputed, None]:
        """Compute and store the KV of chunks. Raises the error that the worker reports.

        Closing or cancelling the generator keeps the worker from storing those that are left.

        Yields:
            One reply per chunk, as it is done.
        """
        message = Precompute(uuid.uuid4().hex, system, list(chunks), prefix_mode, tenant, lora)
        with self.call(message.id, message) as queue:
            left = len(chunks)
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

    async def purge(
        self, system: list[int], chunks: Sequence[ChunkTokens], prefix_mode: str, tenant: str
    ) -> Purged:
        """Delete the KV of chunks in every tier. Raises the error that the worker reports."""
        message = Purge(uuid.uuid4().hex, system, list(chunks), prefix_mode, tenant)
        with self.call(message.id, message) as queue:
            reply = await queue.get()
            if isinstance(reply, Purged):
                return reply
            if isinstance(reply, Failed):
                raise from_code(reply.code, reply.message, reply.field)
            raise WorkerUnavailable(f"the worker answered a purge with {type(reply).__name__}")

    async def gate(self, *, reset: str | None = None) -> GateStates:
        """The states of methods at the correctness gate, after `reset` of one ("": of all)."""
        message = AskGate(uuid.uuid4().hex, reset)
        with self.call(message.id, message) as queue:
            reply = await queue.get()
            if isinstance(reply, GateStates):
                return reply
            if isinstance(reply, Failed):
                raise from_code(reply.code, reply.message, reply.field)
            raise WorkerUnavailable(f"the worker told of its gate with {type(reply).__name__}")
