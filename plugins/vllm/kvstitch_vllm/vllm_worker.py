"""A gateway's worker whose answers vLLM decodes.

    submit ── worker: load, stitch, repair ── HandedOver ── vLLM: load, decode ── tokens ── Done
                                                   └ first token: the worker unlinks the segment

A prompt without documents goes to vLLM at once; all other calls go to the worker as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from kvstitch.service.errors import KvstitchError, WorkerFault, WorkerUnavailable
from kvstitch.service.gateway.answers.response import NOT_ASKED
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.worker_client.client import Event
from kvstitch.service.messages.replies import Done, Failed, HandedOver, Ready, TokenItem
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import Generate, Sampling
from kvstitch.service.plugins import GatewayPart
from kvstitch_vllm.comparisons import TOP, Comparisons, Likely, as_asked
from kvstitch_vllm.own_vllm import OwnVllm
from kvstitch_vllm.vllm_api import AGAIN_S, Ended, Served, VllmApi, body_of
from kvstitch_vllm.weights import weights_of

logger = logging.getLogger(__name__)

CHECK_S = 1.0  # between two looks at a vLLM that cannot be used
LOADED = "loaded"
WHY_NOT = "vLLM decodes, and needs all KV of a prompt: leave it out, or set engine own"


class VllmWorker(GatewayPart):
    """Speaks as a `Worker` does; what is not here is the worker's own."""

    def __init__(self, settings: Any, model_folder: Path, worker: Worker) -> None:
        self._worker = worker
        self._weights = weights_of(model_folder)
        self._own = own = None if settings.engine_url else OwnVllm(settings, model_folder)
        url, key = (own.url, own.api_key) if own else (settings.engine_url, settings.engine_api_key)
        self._api = VllmApi(url, key, settings.engine_timeout_s)
        self._comparisons = Comparisons(self._api, worker)
        self._secret = secrets.token_bytes(32)
        self._served: Served | None = None
        self._why = f"vLLM at {self._api.url} has not been asked yet"
        self._known: tuple[Ready, Served, Ready] | None = None
        # By request: tokens of vLLM and its end, an error, or the reason of an abort.
        self._coming: dict[str, asyncio.Queue[TokenItem | Ended | KvstitchError | str]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    # -- whether it can answer --------------------------------------------------------------------

    @property
    def ready(self) -> Ready | None:
        """What the worker says, without what vLLM cannot do; None while either cannot answer."""
        ready, served = self._worker.ready, self._served
        if ready is None or served is None:
            return None
        if self._known is None or self._known[0] is not ready or self._known[1] is not served:
            context = min(ready.model.max_context, served.max_context)
            limited = msgspec.structs.replace(
                ready,
                model=replace(ready.model, max_context=context),
                fusion=[replace(m, unavailable=WHY_NOT) if m.sparse else m for m in ready.fusion],
                eviction=[replace(method, unavailable=WHY_NOT) for method in ready.eviction],
            )
            self._known = ready, served, limited
        return self._known[2]

    @property
    def reason(self) -> str:
        return self._worker.reason if self._worker.ready is None else self._why

    def require(self) -> Ready:
        if (ready := self.ready) is None:
            raise WorkerUnavailable(self.reason, retry_after_s=AGAIN_S)
        return ready

    async def start(self) -> None:
        work = (self._watch(), self._comparisons.run())
        self._tasks = [asyncio.create_task(each) for each in work]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.close()
        if self._own:
            await self._own.close()

    async def _watch(self) -> None:
        """Ask vLLM until it can be used, and again when it was lost."""
        while True:
            ready = self._worker.ready
            if self._own and ready is not None and await self._own.keep(ready.model.dtype):
                self._served = None
            if self._served is None and ready is not None:
                try:
                    self._served = await self._api.check(self._weights, ready.model.dtype)
                    logger.info("vLLM at %s decodes", self._api.url)
                except KvstitchError as error:
                    if not self._own and error.message != self._why:
                        logger.warning("%s", error.message)
                    self._why = error.message + (self._own.said() if self._own else "")
            await asyncio.sleep(CHECK_S)

    # -- answers ----------------------------------------------------------------------------------

    async def submit(self, request: Generate) -> AsyncGenerator[Event, None]:
        self.require()
        self._coming[request.id] = asyncio.Queue()
        events = (self._handed_over if request.documents else self._alone)(request)
        if not request.sampling.max_tokens:  # only to be kept
            events = self._worker.submit(request)
        try:
            async with aclosing(events) as answer:
                async for event in answer:
                    yield event
        finally:
            del self._coming[request.id]

    def abort(self, request_id: str, reason: str) -> None:
        if (coming := self._coming.get(request_id)) is not None:
            coming.put_nowait(reason)
        self._worker.abort(request_id, reason)

    async def _alone(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Let vLLM compute a prompt without documents."""
        system = replace(NOT_ASKED.system, tokens=len(request.system))
        tokens = len(request.system) + len(request.question)
        report = replace(NOT_ASKED, prompt_tokens=tokens, system=system)
        salt = hashlib.blake2b(request.sharers.encode(), key=self._secret).hexdigest()
        async for event in self._decoded(request, report, HandedOver(request.id, "", 0, []), salt):
            yield event

    async def _handed_over(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Have the worker compute the prompt, and vLLM decode."""
        wanted, begun, done = request.sampling, False, list[Done]()
        ends = Sampling(max_tokens=0, ignore_end=wanted.ignore_end, stop_ids=wanted.stop_ids)
        prefill = msgspec.structs.replace(request, hand_over=True, sampling=ends)
        async with aclosing(self._worker.submit(prefill)) as events:
            handed = await anext(events)
            if not isinstance(handed, HandedOver):
                yield handed  # it was stopped, or failed
                return
            salt = secrets.token_urlsafe(32)
            async for event in self._decoded(request, NOT_ASKED, handed, salt):
                if not begun:
                    self._worker.abort(request.id, LOADED)
                    begun = True
                if isinstance(event, Done):
                    done.append(event)
                    continue
                yield event
                if isinstance(event, Failed):
                    return
            async for event in events:
                yield _together(event, done[0])

    async def _decoded(
        self, request: Generate, report: Report, handed: HandedOver, salt: str
    ) -> AsyncGenerator[Event, None]:
        """Yield vLLM's tokens, then Done with the stages and tokens of this report, or Failed."""
        served, sampling, coming = self._served, request.sampling, self._coming[request.id]
        if served is None:
            yield Failed(request.id, WorkerUnavailable.code, self._why)
            return
        if sampling.temperature > 0 and sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(62))
        prompt = list(chain(request.system, *(d.ids for d in request.documents), request.question))
        ends = handed.end_ids or sampling.stop_ids
        body = body_of(served.model, prompt, sampling, ends=ends, salt=salt, place=handed.place)
        # Where there is a form, it decides some first tokens.
        checks, likely = handed.check and bool(handed.place) and not sampling.grammar, Likely()
        if checks:
            body["logprobs"] = max(TOP, sampling.logprobs or 0)
        pump = asyncio.create_task(self._pump(request.id, body, coming))
        began = first = time.perf_counter()
        made = 0
        try:
            while isinstance(item := await coming.get(), TokenItem):
                first = first if made else time.perf_counter()
                if checks:
                    likely = likely or (item.logprobs.top if item.logprobs else [])
                    item = as_asked(item, sampling.logprobs)
                made += 1
                yield item
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        if isinstance(item, KvstitchError):
            yield Failed(request.id, item.code, item.message, item.field)
            return
        left = handed.tokens - 1 - item.loaded if isinstance(item, Ended) else 0
        if checks and likely and isinstance(item, Ended) and left <= 0:
            self._comparisons.add(request.id, body, likely)
        why = f"vLLM computed {left} tokens of the prompt itself: its log says why"
        report = replace(
            report,
            completion_tokens=made,
            decode_steps=max(0, made - 1),
            seed=sampling.seed if sampling.temperature > 0 else None,
            stages={"engine": first - began, "decode": time.perf_counter() - first},
            warnings=[why] if handed.place and left > 0 else [],
        )
        yield Done(request.id, item.reason if isinstance(item, Ended) else item, report)

    async def _pump(self, id: str, body: dict[str, Any], coming: asyncio.Queue[Any]) -> None:
        try:
            async with aclosing(self._api.answer(id, body)) as answer:
                async for item in answer:
                    coming.put_nowait(item)
        except KvstitchError as error:
            if isinstance(error, WorkerUnavailable):
                self._served, self._why = None, error.message
            coming.put_nowait(error)
        except Exception as error:
            coming.put_nowait(WorkerFault(f"vLLM's answer cannot be read: {error!r}"))


def _together(event: Event, vllm: Done) -> Event:
    """Return the end of an answer: the prompt's report is the worker's, the rest vLLM's."""
    if not isinstance(event, Done):
        return event
    own, answered = event.report, vllm.report
    rest = {name: getattr(answered, name) for name in ("completion_tokens", "decode_steps", "seed")}
    stages, warnings = own.stages | answered.stages, [*own.warnings, *answered.warnings]
    report = replace(own, **rest, stages=stages, warnings=warnings)
    return Done(event.id, vllm.finish_reason, report)
