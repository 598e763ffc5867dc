"""From a request to the message the worker gets: check, find passages, plan the prompt.

    check ── methods ── embed, search (or inline documents) ── prefetch ── plan ── Prepared

The same for an answer and for its explanation. Knows no HTTP, admission or tensors.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from service.errors import NotFound, PromptTooLong
from service.gateway.answers import inline_documents
from service.gateway.answers.validation import RequestValidator, ValidatedRequest
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever, RetrievalResult
from service.gateway.schemas.generate import InlineDocument
from service.gateway.worker_client.protocol import Worker
from service.messages import Chunk, Generate, Prefetch, Sampling
from service.prompt import PromptPlan
from service.settings import Settings

# Of inline documents: more text than this per token of context cannot fit, and is not encoded.
CHARS_PER_TOKEN = 32
# A conversation this long takes longer to encode than the worker takes to read ahead of it. For a
# shorter one the request itself is there as soon, and handling a hint would hold it up (by 1.2 ms
# with everything in memory).
PREFETCH_CHARS = 1000


@dataclass(frozen=True)
class PreparedRequest:
    """`tokens` are the prompt's; `stages` holds the seconds of embed, retrieve and plan."""

    found: RetrievalResult
    generate: Generate
    tokens: int
    stages: dict[str, float]
    warnings: list[str]

    def traced(self, traceparent: str) -> PreparedRequest:
        """As part of that span."""
        return replace(
            self, generate=msgspec.structs.replace(self.generate, traceparent=traceparent)
        )


@dataclass(frozen=True)
class _LaidOut:
    found: RetrievalResult
    plan: PromptPlan
    plan_s: float


class RequestPreparer:
    """Holds no state of its own."""

    def __init__(
        self, worker: Worker, retriever: AsyncRetriever, prompts: PromptBuilder, settings: Settings
    ) -> None:
        self.check = RequestValidator(worker, retriever, prompts, settings).check
        self._worker = worker
        self._retriever = retriever
        self._prompts = prompts
        self._settings = settings

    def estimate(self, checked: ValidatedRequest) -> int:
        """About how many tokens the prompt will have."""
        texts = checked.request.inline_documents
        if texts is None:
            return self._prompts.estimate(checked.turns, checked.top_k)
        inline_tokens = sum(len(document.text) for document in texts) // 3
        return self._prompts.estimate(checked.turns, 0) + inline_tokens

    async def prepare(self, checked: ValidatedRequest, *, prefetch: bool = True) -> PreparedRequest:
        """`prefetch`: let the worker bring the chunks closer meanwhile.

        Raises InvalidRequest, PromptTooLong, NotFound."""
        request = checked.request
        context = self._worker.require().model.max_context
        await self._check_length(checked, context)
        laid_out = await self._lay_out(checked, context, prefetch)
        found, plan = laid_out.found, laid_out.plan
        max_tokens, clamped = self._room(request.max_tokens, plan, context)
        warnings = [*found.warnings, *clamped]
        if checked.top_k and not found.passages:
            warnings.append("there are no documents to answer from: the answer cites nothing")
        generate = Generate(
            id=f"rag-{uuid.uuid4().hex}",
            system=plan.system,
            documents=[Chunk(d.chunk_id, d.ids) for d in plan.documents],
            question=plan.question,
            fusion=checked.fusion,
            eviction=checked.eviction,
            sampling=Sampling(max_tokens, request.temperature, request.top_p, request.seed),
            prefix_mode=self._prompts.prefix_mode,
            tenant=checked.scope.tenant,
            token_fates=request.include_tokens,
        )
        stages = {"embed": found.embed_s, "retrieve": found.retrieve_s, "plan": laid_out.plan_s}
        if request.rerank:
            stages["rerank"] = found.rerank_s
        return PreparedRequest(found, generate, plan.tokens, stages, warnings)

    # -- passages and prompt ---------------------------------------------------------------------

    async def _check_length(self, checked: ValidatedRequest, context: int) -> None:
        """Embedding a question that cannot fit would take seconds. A token is a byte at least:
        what cannot be too long is not counted here."""
        if sum(len(turn.text.encode()) for turn in checked.turns) > context // 2:
            await self._retriever.in_search_thread(
                lambda: self._prompts.plan([], checked.turns, max_context=context)
            )

    async def _lay_out(self, checked: ValidatedRequest, context: int, prefetch: bool) -> _LaidOut:
        """Find the passages, and plan the prompt on the thread that found them."""
        request, retriever = checked.request, self._retriever
        plan = partial(self._plan, checked, context, prefetch, asyncio.get_running_loop())
        if request.inline_documents is not None:
            return await self._lay_out_inline(request.inline_documents, context, plan)
        if request.documents is not None:
            unknown = await retriever.unknown(request.documents, scope=checked.scope)
            if unknown:
                raise NotFound(
                    f"documents: there is no document {unknown[0]!r}; GET /admin/documents lists "
                    "what there is",
                    field="documents",
                )
        if not checked.top_k:
            return await retriever.in_search_thread(lambda: plan(RetrievalResult([], 0.0, 0.0)))
        return await retriever.search(
            checked.question,
            checked.top_k,
            request.documents,
            checked.filter,
            scope=checked.scope,
            mode=request.retrieval or self._settings.retrieval,
            reranked=request.rerank,
            then=plan,
        )

    async def _lay_out_inline(
        self,
        documents: Sequence[InlineDocument],
        context: int,
        plan: Callable[[RetrievalResult], _LaidOut],
    ) -> _LaidOut:
        chars = sum(len(document.text) for document in documents)
        if chars > CHARS_PER_TOKEN * context:
            raise PromptTooLong(
                f"inline_documents have {chars} characters, the model takes {context} tokens: "
                "send less text",
                field="inline_documents",
            )
        chunking = self._prompts.chunking()

        def cut_and_plan() -> _LaidOut:
            return plan(RetrievalResult(inline_documents.passages(documents, chunking), 0.0, 0.0))

        try:
            return await self._retriever.in_search_thread(cut_and_plan)
        except PromptTooLong as error:
            sizes = error.message.partition(":")[0]
            raise PromptTooLong(
                f"{sizes}: send less text in inline_documents", field="inline_documents"
            ) from error

    def _plan(
        self,
        checked: ValidatedRequest,
        context: int,
        prefetch: bool,
        loop: asyncio.AbstractEventLoop,
        found: RetrievalResult,
    ) -> _LaidOut:
        """The prompt; where the rest of it takes long to plan, the worker hears about the
        documents before."""
        started = time.perf_counter()
        documents = self._prompts.segments([passage.chunk for passage in found.passages])
        chars = sum(len(turn.text) for turn in checked.turns)
        if documents and prefetch and chars > PREFETCH_CHARS:
            chunks = [Chunk(d.chunk_id, d.ids) for d in documents]
            fusion, mode = checked.fusion.name, self._prompts.prefix_mode
            coming = Prefetch(fusion, self._prompts.system, chunks, mode, checked.scope.tenant)
            loop.call_soon_threadsafe(self._worker.prefetch, coming)
        plan = self._prompts.plan(documents, checked.turns, max_context=context)
        return _LaidOut(found, plan, time.perf_counter() - started)

    def _room(self, wanted: int | None, plan: PromptPlan, context: int) -> tuple[int, list[str]]:
        """max_tokens as it fits behind the prompt, and a warning if that is less than asked."""
        room = min(context - plan.tokens, self._settings.max_tokens_limit)
        if wanted is None:
            return min(self._prompts.format.max_tokens, room), []
        if wanted <= room:
            return wanted, []
        return room, [
            f"max_tokens was lowered from {wanted} to {room}: the prompt has {plan.tokens} tokens"
        ]
