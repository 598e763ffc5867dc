"""One answer on its way: the worker's tokens to text, stop strings, and the result at the end.

Every answer is closed, and counted, exactly once. Knows no HTTP, no retrieval and no tensors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from service.errors import KvstitchError, from_code
from service.gateway.answers import response
from service.gateway.answers.call_context import CallContext
from service.gateway.answers.concurrency_limiter import RequestSlot
from service.gateway.answers.preparation import PreparedRequest
from service.gateway.answers.token_report import token_report
from service.gateway.prometheus import GatewayMetrics
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.schemas import Citation, GenerateRequest, GenerateResponse
from service.gateway.worker_client.protocol import Worker
from service.messages import Done, Failed, TokenItem
from service.tracing import Span


@dataclass(frozen=True)
class Sources:
    citations: list[Citation]


@dataclass(frozen=True)
class TextDelta:
    text: str


@dataclass(frozen=True)
class Finished:
    response: GenerateResponse


AnswerEvent = Sources | TextDelta | Finished
DISCONNECT = "disconnect"
DEADLINE = "deadline"


@dataclass
class AnswerStream:
    """One answer on its way: iterate `events()` once, and always `aclose()` it."""

    worker: Worker
    prompts: PromptBuilder
    metrics: GatewayMetrics
    request: GenerateRequest
    prepared: PreparedRequest
    ticket: RequestSlot
    call: CallContext
    span: Span
    _first: float | None = None
    _last: float | None = None
    _flush_s: float = 0.0  # until the consumer of our text asked for more
    _ended: bool = False
    _events: AsyncGenerator[AnswerEvent, None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._text = self.prompts.answer_text(self.request.stop)
        self.generate = self.prepared.generate
        self.citations = response.citations(
            self.prepared.found.passages, with_text=self.request.include_text
        )

    def events(self) -> AsyncGenerator[AnswerEvent, None]:
        """Sources, then Text as it comes, then Finished. Raises the KvstitchError of a Failed.

        Closing or cancelling it aborts the sequence in the worker.
        """
        self._events = self._run()
        return self._events

    async def collect(self) -> GenerateResponse:
        """The whole answer. Raises as `events`."""
        try:
            async for event in self.events():
                if isinstance(event, Finished):
                    return event.response
        finally:
            await self.aclose()
        raise KvstitchError("the answer ended without a result")

    async def aclose(self) -> None:
        """Release everything; an answer that had not ended is aborted."""
        if self._events is not None:
            await self._events.aclose()
        self._end(DISCONNECT, None)

    async def _run(self) -> AsyncGenerator[AnswerEvent, None]:
        alarm: asyncio.TimerHandle | None = None
        try:
            yield Sources(self.citations)
            if (left_s := self.call.left_s) is not None:
                # Nothing is awaited before the request is sent: an abort never overtakes it.
                abort, loop = self.worker.abort, asyncio.get_running_loop()
                alarm = loop.call_later(left_s, abort, self.generate.id, DEADLINE)
            async with aclosing(self.worker.submit(self.generate)) as stream:
                async for event in stream:
                    match event:
                        case TokenItem(token=token):
                            if text := self._token(token):
                                started = time.perf_counter()
                                yield TextDelta(text)
                                self._flush_s += time.perf_counter() - started
                        case Failed():
                            raise from_code(event.code, event.message, event.field)
                        case Done():
                            if text := self._text.finish():
                                yield TextDelta(text)
                            result = self._response(event)
                            if (fates := event.report.token_fates) is not None:
                                result.cache.tokens = await asyncio.to_thread(
                                    token_report,
                                    fates,
                                    event.report,
                                    self.generate,
                                    self.prompts.tokenizer.decode,
                                )
                            late = result.finish_reason == DEADLINE
                            self._end(DEADLINE if late else "ok", result.timing.total_s)
                            yield Finished(result)
        except BaseException as error:
            self._end(outcome_of(error), None)
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def _token(self, token: int) -> str:
        now = time.perf_counter()
        if self._last is None:
            self._first = now
            self.ticket.prefilled()
        else:
            self.metrics.inter_token.observe(now - self._last)
        self._last = now
        self.call.principal.spend_tokens(1)
        stopped_before = self._text.stopped
        text = self._text.push(token)
        if self._text.stopped and not stopped_before:
            self.worker.abort(self.generate.id, "stop")
        return text

    def _response(self, done: Done) -> GenerateResponse:
        total_s = time.perf_counter() - self.call.arrived
        ttft_s = total_s if self._first is None else self._first - self.call.arrived
        report = done.report
        times = response.timing(ttft_s, total_s, report.completion_tokens)
        stages = {**self.prepared.stages, **report.stages, "flush": self._flush_s}
        eviction = self.generate.eviction
        response.observe(self.metrics, times, stages, report, evicted=eviction is not None)
        return GenerateResponse(
            id=self.generate.id,
            model=self.prompts.model,
            text=self._text.text,
            # The worker may have come to its own end before our abort reached it.
            finish_reason="stop" if self._text.stopped else done.finish_reason,
            citations=self.citations,
            usage=response.usage(report),
            cache=response.cache(report, self.prepared.found.passages),
            stages=stages,
            timing=times,
            fusion=response.method(self.generate.fusion),
            eviction=None if eviction is None else response.method(eviction),
            seed=report.seed,
            warnings=[*self.prepared.warnings, *report.warnings],
        )

    def _end(self, outcome: str, seconds: float | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.ticket.close(seconds)
        self.metrics.requests.labels(self.generate.fusion.name, outcome).inc()
        if outcome == DISCONNECT:
            self.metrics.disconnects.inc()
        self.span.end(
            self.prepared.stages,
            {
                "kvstitch.fusion": self.generate.fusion.name,
                "kvstitch.prompt_tokens": self.prepared.tokens,
                "kvstitch.outcome": outcome,
            },
            "" if outcome in ("ok", DEADLINE, DISCONNECT) else outcome,
        )


def outcome_of(error: BaseException) -> str:
    if isinstance(error, KvstitchError):
        return error.code
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return DISCONNECT
    return KvstitchError.code
