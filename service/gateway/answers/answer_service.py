"""Answers questions: the one way from a request to an answer, whichever route it came by.

open     validate ── slot ── prepare            errors become a status
events   sources ── worker ── text ── result    errors end the stream (answer_stream.py)
explain  validate ── slot ── prepare ── forecast
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstitch.records.answers import Answer, Explanation
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.admission import CallContext, ConcurrencyLimiter, before_deadline
from kvstitch.service.gateway.answers.answer_stream import AnswerEvent, AnswerStream, outcome_of
from kvstitch.service.gateway.answers.forms import AnswerForms
from kvstitch.service.gateway.answers.preparation import RequestPreparer
from kvstitch.service.gateway.answers.response import explanation
from kvstitch.service.gateway.answers.validation import RequestValidator
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.schemas.generate import GenerateRequest
from kvstitch.service.shared.tracing import Tracing, attributes_of, span_name


class NumberedEvent(NamedTuple):
    """An event of the answer with this number, from 0."""

    number: int
    event: AnswerEvent


@dataclass(frozen=True)
class AnswerGroup:
    """Answers that begin, and are given up, together."""

    answers: list[AnswerStream] = field(default_factory=list)

    async def events(self) -> AsyncGenerator[NumberedEvent, None]:
        """The events of all answers as they come; if one raises, the others are given up."""
        if len(self.answers) == 1:
            async with aclosing(self.answers[0].events()) as events:
                async for event in events:
                    yield NumberedEvent(0, event)
            return
        # One event at most waits, so that a slow client slows the answers down.
        coming: asyncio.Queue[NumberedEvent | BaseException | None] = asyncio.Queue(1)

        async def forward(number: int, answer: AnswerStream) -> None:
            try:
                async with aclosing(answer.events()) as events:
                    async for event in events:
                        await coming.put(NumberedEvent(number, event))
                await coming.put(None)
            except Exception as error:
                await coming.put(error)

        tasks = [asyncio.create_task(forward(n, each)) for n, each in enumerate(self.answers)]
        try:
            left = len(tasks)
            while left:
                item = await coming.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self) -> list[Answer]:
        """Return the whole answers. Raises as `events`."""
        if len(self.answers) == 1:
            return [await self.answers[0].collect()]
        tasks = [asyncio.create_task(answer.collect()) for answer in self.answers]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.aclose()

    async def aclose(self) -> None:
        """Release everything; answers that have not ended are aborted."""
        for answer in self.answers:
            await answer.aclose()


@dataclass(frozen=True, kw_only=True)
class AnswerService:
    """Opens answers and explains them. Stateless."""

    worker: Worker
    prompts: PromptBuilder
    validator: RequestValidator
    preparer: RequestPreparer
    limiter: ConcurrencyLimiter
    metrics: GatewayMetrics
    tracing: Tracing
    forms: AnswerForms

    async def open(self, requests: Sequence[GenerateRequest], call: CallContext) -> AnswerGroup:
        """Prepare answers; nothing is generated before their events are read. Raises
        InvalidRequest, NotFound: a request is wrong, or a document that it names is not stored;
        Overloaded; WorkerUnavailable: the worker or the index is not ready; DeadlineExceeded."""
        opened = AnswerGroup()
        for request in requests:
            fusion_label, slot, model = "none", None, self.prompts.model
            name = span_name(call.operation, model)
            span = self.tracing.begin(name, call.traceparent, ago_s=call.ago_s, served=True)
            try:
                plan = self.validator.validate(request, call)
                fusion_label = plan.fusion.name
                slot = self.limiter.acquire(plan.estimated_tokens, call.principal.key_id)
                preparing = self.preparer.prepare(plan, traceparent=span.traceparent)
                await before_deadline(preparing, call)
                if plan.unanswered is not None:
                    self.metrics.unanswerable.labels(plan.unanswered).inc()
                call.principal.spend_tokens(plan.prompt_tokens + plan.condense_tokens)
            except BaseException as error:
                if slot is not None:
                    slot.close()
                self.metrics.requests.labels(fusion_label, outcome_of(error)).inc()
                attributes = attributes_of(call.operation, model)
                span.end(attributes=attributes, error=outcome_of(error))
                await opened.aclose()
                raise
            opened.answers.append(
                AnswerStream(
                    worker=self.worker,
                    prompts=self.prompts,
                    metrics=self.metrics,
                    plan=plan,
                    slot=slot,
                    call=call,
                    span=span,
                    forms=self.forms,
                )
            )
        return opened

    async def explain(self, request: GenerateRequest, call: CallContext) -> Explanation:
        """Say what an answer would take. Nothing is generated, and no chunk is moved. Raises as
        `open`, and InvalidRequest for a stream."""
        if request.stream:
            raise InvalidRequest(
                "stream: an explanation comes in one piece, leave stream out", field="stream"
            )
        plan = self.validator.validate(request, call)
        slot = self.limiter.acquire(0, call.principal.key_id)
        try:
            await before_deadline(self.preparer.prepare(plan, prefetch=False), call)
            forecast = await before_deadline(self.worker.explain(plan.generate), call)
        finally:
            slot.close()
        return explanation(self.prompts.model, plan, forecast)
