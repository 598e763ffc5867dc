"""One answer while it is generated: the worker's tokens become text, stop strings end it, and the
result comes last. Every answer is closed and counted exactly once."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from kvstitch.records.answers import Answer, Citation, RetrievalNote, Timing, TokenLogprob
from kvstitch.service.errors import InternalError, KvstitchError, from_code
from kvstitch.service.gateway.admission import CallContext, RequestSlot
from kvstitch.service.gateway.answers import response
from kvstitch.service.gateway.answers.attributor import attributed
from kvstitch.service.gateway.answers.forms import AnswerForms
from kvstitch.service.gateway.answers.response import NOT_ASKED, observe_answer
from kvstitch.service.gateway.answers.validation import AnswerPlan
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.prompts.detokenizer import AnswerLogprobs, AnswerText
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.messages.replies import Done, Failed, TokenItem
from kvstitch.service.shared.tracing import OUTPUT_TOKENS, Attributes, Span, attributes_of


@dataclass(frozen=True)
class Sources:
    """The first event: the passages that the prompt holds, and what was searched for them."""

    citations: list[Citation]
    retrieval: RetrievalNote | None = None


@dataclass(frozen=True)
class TextDelta:
    """The next piece of the answer's text. logprobs: of the tokens that were not told yet, up to
    its end; None if the request asks for none."""

    text: str
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True)
class Finished:
    """The last event: the whole result."""

    response: Answer


AnswerEvent = Sources | TextDelta | Finished
DISCONNECT = "disconnect"
DEADLINE = "deadline"


@dataclass(kw_only=True)
class AnswerStream:
    """One answer: iterate `events()` once, and always `aclose()` it."""

    worker: Worker
    prompts: PromptBuilder
    metrics: GatewayMetrics
    plan: AnswerPlan
    slot: RequestSlot
    call: CallContext
    span: Span
    forms: AnswerForms
    _first_token_at: float | None = None
    _last_token_at: float | None = None
    _after_stop: int = 0  # tokens that came before the worker heard of a stop string
    _flush_s: float = 0.0  # time until the consumer of our text asked for more
    _ended: bool = False
    _told: Attributes = field(default_factory=dict, repr=False)  # by the worker, at its end
    _text: AnswerText = field(init=False, repr=False)
    _logprobs: AnswerLogprobs | None = field(init=False, repr=False)
    _events: AsyncGenerator[AnswerEvent, None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._text = self.prompts.answer_text(
            self.plan.request, self.plan.generate.question, begun=self.plan.begins
        )
        wanted = self.plan.generate.sampling.logprobs is not None
        self._logprobs = (
            AnswerLogprobs(self._text, self.prompts.tokenizer.piece) if wanted else None
        )

    @property
    def id(self) -> str:
        return self.plan.generate.id

    @property
    def stopped_by(self) -> str:
        """The stop string that has ended the answer; empty: none has."""
        return self._text.stopped_by

    def events(self) -> AsyncGenerator[AnswerEvent, None]:
        """Start the generation. Closing or cancelling the generator aborts it in the worker."""
        self._events = self._run()
        return self._events

    async def collect(self) -> Answer:
        """Return the whole answer. Raises as `events`."""
        try:
            async for event in self.events():
                if isinstance(event, Finished):
                    return event.response
        finally:
            await self.aclose()
        raise InternalError("the answer ended without a result")

    async def aclose(self) -> None:
        """Release everything; an answer that has not ended is aborted."""
        if self._events is not None:
            await self._events.aclose()
        self._end(DISCONNECT, None)

    async def _run(self) -> AsyncGenerator[AnswerEvent, None]:
        generate = self.plan.generate
        timer: asyncio.TimerHandle | None = None
        try:
            yield Sources(self.plan.citations, self.plan.retrieval)
            if said := self.plan.said:
                yield TextDelta(said, None if self._logprobs is None else [])
                result = self._result(Done(id=self.id, finish_reason="stop", report=NOT_ASKED))
                result = await attributed(result, self.plan, "")
                self._end("ok", None)
                yield Finished(result)
                return
            if (left_s := self.call.left_s) is not None:
                # Nothing is awaited before the request is sent, so no abort can overtake it.
                loop = asyncio.get_running_loop()
                timer = loop.call_later(left_s, self.worker.abort, generate.id, DEADLINE)
            async with aclosing(self.worker.submit(generate)) as stream:
                async for event in stream:
                    match event:
                        case TokenItem():
                            if self._text.stopped:
                                self._after_stop += 1
                            elif text := self._take(event):
                                started = time.perf_counter()
                                yield self._delta(text)
                                self._flush_s += time.perf_counter() - started
                        case Failed():
                            raise from_code(event.code, event.message, event.field)
                        case Done():
                            if text := self._text.finish():
                                yield self._delta(text)
                            result = self._result(event)
                            await self.forms.check(self.plan, result)
                            result = await attributed(result, self.plan, self._text.begun)
                            if (fates := event.report.token_fates) is not None:
                                tokens = await asyncio.to_thread(
                                    response.token_report,
                                    fates,
                                    event.report,
                                    generate,
                                    self.prompts.tokenizer.decode,
                                )
                                cache = replace(result.cache, tokens=tokens)
                                result = replace(result, cache=cache)
                            late = result.finish_reason == DEADLINE
                            self._end(DEADLINE if late else "ok", result.timing.total_s)
                            yield Finished(result)
        except BaseException as error:
            self._end(outcome_of(error), None)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _delta(self, text: str) -> TextDelta:
        return TextDelta(text, None if self._logprobs is None else self._logprobs.release())

    def _take(self, item: TokenItem) -> str:
        """Count a token, and return the text that it adds."""
        now = time.perf_counter()
        if self._last_token_at is None:
            self._first_token_at = now
            self.slot.prefilled()
        else:
            self.metrics.inter_token.observe(now - self._last_token_at)
        self._last_token_at = now
        self.call.principal.spend_tokens(1)
        text = self._text.push(item.token)
        if self._logprobs is not None:
            self._logprobs.push(item)
        if self._text.stopped:
            self.worker.abort(self.id, "stop")
        return text

    def _result(self, done: Done) -> Answer:
        total_s = time.perf_counter() - self.call.arrived
        first = self._first_token_at
        ttft_s = total_s if first is None else first - self.call.arrived
        made = done.report.completion_tokens - self._after_stop
        report = replace(done.report, completion_tokens=made)
        self._told = {
            OUTPUT_TOKENS: report.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": report.cached_tokens,
            "gen_ai.response.finish_reasons": [done.finish_reason],
        }
        tpot_s = (total_s - ttft_s) / (made - 1) if made > 1 else None
        timing = Timing(ttft_s=ttft_s, tpot_s=tpot_s, total_s=total_s)
        stages = {**self.plan.stages, **report.stages, "flush": self._flush_s}
        fusion, eviction = self.plan.generate.fusion, self.plan.generate.eviction
        if not self.plan.said:
            observe_answer(self.metrics, timing, stages, report, evicted=eviction is not None)
        return Answer(
            id=self.id,
            model=self.prompts.model,
            adapter=self.plan.generate.lora or None,
            text=self.plan.said or self._text.text,
            # The worker may have finished by itself before our abort reached it.
            finish_reason="stop" if self._text.stopped else done.finish_reason,
            citations=self.plan.citations,
            found=bool(self.plan.passages),
            relevance=self.plan.relevance,
            retrieval=self.plan.retrieval,
            usage=response.usage(report),
            cache=response.cache_report(report, self.plan.names),
            stages=stages,
            timing=timing,
            fusion=response.method_fields(fusion),
            eviction=None if eviction is None else response.method_fields(eviction),
            seed=report.seed,
            logprobs=None if self._logprobs is None else self._logprobs.released,
            warnings=[*self.plan.warnings, *report.warnings],
        )

    def _end(self, outcome: str, seconds: float | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.slot.close(seconds)
        self.metrics.requests.labels(self.plan.generate.fusion.name, outcome).inc()
        if adapter := self.plan.generate.lora:
            self.metrics.adapter_requests.labels(adapter, outcome).inc()
        if outcome == DISCONNECT:
            self.metrics.disconnects.inc()
        failed = outcome not in ("ok", DEADLINE, DISCONNECT)
        generate, first = self.plan.generate, self._first_token_at
        attributes = attributes_of(
            self.call.operation,
            self.prompts.model,
            request__max_tokens=generate.sampling.max_tokens,
            request__temperature=generate.sampling.temperature,
            request__top_p=generate.sampling.top_p,
            request__stream=self.plan.request.stream,
            response__id=self.id,
            response__model=generate.lora or self.prompts.model,
            response__time_to_first_chunk=None if first is None else first - self.call.arrived,
            usage__input_tokens=self.plan.prompt_tokens,
        )
        own = {"kvstitch.fusion": generate.fusion.name, "kvstitch.outcome": outcome}
        attributes = {**attributes, **own, **self._told}
        self.span.end(self.plan.stages, attributes, outcome if failed else "")


def outcome_of(error: BaseException) -> str:
    """Return the label under which a failed answer is counted."""
    if isinstance(error, KvstitchError):
        return error.code
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return DISCONNECT
    return KvstitchError.code
