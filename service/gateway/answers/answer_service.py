"""The use case of an answer, without the HTTP. THE way to one: every route ends here.

    explain  check ── admit ── prepare ── forecast                      nothing is generated
    open     check ── admit ── prepare                                  errors become a status
    events   sources ── submit ── tokens to text, stop strings ── done  errors end the stream

Preparing is in preparing.py, events are in stream.py. Knows no HTTP and no tensors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from service.errors import DeadlineExceeded, InvalidRequest
from service.gateway.answers.answer_stream import AnswerStream, outcome_of
from service.gateway.answers.call_context import CallContext
from service.gateway.answers.concurrency_limiter import ConcurrencyLimiter, RequestSlot
from service.gateway.answers.explanation import explanation
from service.gateway.answers.preparation import RequestPreparer
from service.gateway.prometheus import GatewayMetrics
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.schemas import GenerateRequest
from service.gateway.schemas.explain import Explanation
from service.gateway.worker_client.protocol import Worker
from service.tracing import Tracing

T = TypeVar("T")


class AnswerService:
    """Opens answers. Everything it needs is handed in; it holds no state of its own."""

    def __init__(
        self,
        *,
        worker: Worker,
        prompts: PromptBuilder,
        preparer: RequestPreparer,
        limiter: ConcurrencyLimiter,
        metrics: GatewayMetrics,
        tracing: Tracing,
    ) -> None:
        self.worker = worker
        self.prompts = prompts
        self.metrics = metrics
        self._tracing = tracing
        self._preparer = preparer
        self._limiter = limiter

    async def open(self, request: GenerateRequest, call: CallContext) -> AnswerStream:
        """An answer ready to stream.

        Raises InvalidRequest and its kinds, NotFound, Overloaded, WorkerUnavailable, and
        DeadlineExceeded if the deadline passes meanwhile.
        """
        fusion_label = "none"
        ticket: RequestSlot | None = None
        ago_s = time.perf_counter() - call.arrived
        span = self._tracing.begin("kvstitch.answer", call.traceparent, ago_s=ago_s)
        try:
            checked = self._preparer.check(request, call)
            fusion_label = checked.fusion.name
            ticket = self._limiter.enter(self._preparer.estimate(checked))
            prepared = await _in_time(self._preparer.prepare(checked), call)
            call.principal.spend_tokens(prepared.tokens)
        except BaseException as error:
            if ticket is not None:
                ticket.close()
            self.metrics.requests.labels(fusion_label, outcome_of(error)).inc()
            span.end(error=outcome_of(error))
            raise
        prepared = prepared.traced(span.traceparent)
        return AnswerStream(
            self.worker, self.prompts, self.metrics, request, prepared, ticket, call, span
        )

    async def explain(self, request: GenerateRequest, call: CallContext) -> Explanation:
        """What the answer would be made of; nothing is generated, and no chunk is moved.

        Raises as `open`.
        """
        if request.stream:
            raise InvalidRequest(
                "stream: an explanation comes in one piece, leave stream out", field="stream"
            )
        checked = self._preparer.check(request, call)
        ticket = self._limiter.enter(0)
        try:
            prepared = await _in_time(self._preparer.prepare(checked, prefetch=False), call)
            forecast = await _in_time(self.worker.explain(prepared.generate), call)
        finally:
            ticket.close()
        return explanation(self.prompts.model, request, prepared, forecast)


async def _in_time(work: Awaitable[T], call: CallContext) -> T:
    try:
        async with asyncio.timeout(call.left_s):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(
            "the deadline passed before the answer began: give more time"
        ) from None
