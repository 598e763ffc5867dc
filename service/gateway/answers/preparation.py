"""From a validated request to the message that the worker gets.

    find passages ── encode them ── hint to the worker ── encode the question ── plan ── Generate

All of it runs in one visit to a search thread, because a change of threads costs a quarter of a
millisecond. Only a request with a reranker leaves the thread in between. Answers and explanations
are made from the same PreparedRequest.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retriever import Passage
from service.errors import PromptTooLong
from service.gateway.answers import response
from service.gateway.answers.inline_documents import inline_passages
from service.gateway.answers.token_choice import sampling
from service.gateway.answers.validation import ValidatedRequest
from service.gateway.prompts.precomputed_behind import PrecomputedBehind
from service.gateway.prompts.prompt_builder import PromptBuilder, PromptPlan
from service.gateway.retrieval.async_retriever import AsyncRetriever, RetrievalResult
from service.gateway.retrieval.passage_search import PassageSearch
from service.gateway.schemas import Citation
from service.gateway.schemas.generate import InlineDocument
from service.gateway.worker_client.protocol import Worker
from service.messages import Chunk, Generate, Prefetch
from service.settings import Settings

# Inline documents with more characters per token of context than this cannot fit, and are refused
# before they are encoded.
MAX_INLINE_CHARS_PER_TOKEN = 32
# A conversation this long takes longer to encode than the worker takes to read KV ahead. For a
# shorter one the request itself comes as soon, and handling the hint would delay it (by 1.2 ms with
# all KV in memory).
PREFETCH_MIN_CHARS = 1000

SendHint = Callable[[Prefetch], None]


@dataclass(frozen=True)
class PreparedRequest:
    """A request that is ready to be sent to the worker.

    Attributes:
        generate: The message.
        passages: The documents of the prompt, in its order.
        citations: The same as the client gets them.
        prompt_tokens: Length of the prompt.
        stages: Seconds of embed, retrieve, plan and, if it was asked for, rerank.
        warnings: For the client.
    """

    generate: Generate
    passages: list[Passage]
    citations: list[Citation]
    prompt_tokens: int
    stages: dict[str, float]
    warnings: list[str]

    @property
    def doc_ids(self) -> dict[int, str]:
        """Chunk id to the id of its document."""
        return {passage.chunk.chunk_id: passage.chunk.doc_id for passage in self.passages}


@dataclass(frozen=True)
class _Found:
    """Passages, and the question's ids if they had to be known before the search."""

    result: RetrievalResult
    question: list[int] | None


class RequestPreparer:
    """Finds passages and plans the prompt. Stateless."""

    def __init__(
        self,
        worker: Worker,
        retriever: AsyncRetriever,
        prompts: PromptBuilder,
        behind: PrecomputedBehind,
        settings: Settings,
    ) -> None:
        self._worker = worker
        self._behind = behind
        self._retriever = retriever
        self._passages = PassageSearch(retriever, settings)
        self._prompts = prompts
        self._settings = settings

    async def prepare(
        self, validated: ValidatedRequest, *, traceparent: str = "", prefetch: bool = True
    ) -> PreparedRequest:
        """Prepare a request.

        Args:
            validated: The request.
            traceparent: The span that the worker's spans belong to; empty: none.
            prefetch: Whether the worker may bring chunks closer while a long question is encoded.

        Raises:
            InvalidRequest: What only a search or the tokenizer can find out.
            PromptTooLong: The prompt does not fit into the model's context.
            NotFound: A named document is not stored.
        """
        loop = asyncio.get_running_loop()

        def send_hint(hint: Prefetch) -> None:
            # The worker's client belongs to the event loop.
            loop.call_soon_threadsafe(self._worker.prefetch, hint)

        def plan(found: _Found) -> PreparedRequest:
            return self._plan(validated, found, traceparent, send_hint if prefetch else None)

        if validated.search is None or not validated.search.rerank:
            return await self._retriever.run_blocking(lambda: plan(self._find(validated)))
        found = await self._retriever.run_blocking(lambda: self._find(validated))
        reranked = await self._retriever.rerank(validated.search, found.result)
        return await self._retriever.run_blocking(lambda: plan(_Found(reranked, found.question)))

    # -- on a search thread ----------------------------------------------------------------------

    def _find(self, validated: ValidatedRequest) -> _Found:
        request = validated.request
        question = self._encode_if_long(validated)
        if request.inline_documents is not None:
            passages = self._inline_passages(request.inline_documents, validated.max_context)
            return _Found(RetrievalResult(passages), question)
        if validated.search is None:
            if request.documents is not None:
                self._passages.require_documents(request.documents, validated.scope)
            return _Found(RetrievalResult([]), question)
        return _Found(self._passages.find(validated.search), question)

    def _encode_if_long(self, validated: ValidatedRequest) -> list[int] | None:
        """The ids of a question that may not fit, because embedding it in vain takes seconds.

        A token has at least one byte, so a question of fewer bytes surely fits.
        """
        question_bytes = sum(len(turn.text.encode()) for turn in validated.turns)
        tools = validated.request.tools
        question_bytes += 0 if tools is None else len(tools.text.encode())
        if question_bytes <= validated.max_context // 2:
            return None
        question = self._question(validated)
        self._prompts.check_length([], question, max_context=validated.max_context)
        return question

    def _question(self, validated: ValidatedRequest) -> list[int]:
        guided = validated.request.guided is not None
        return self._prompts.encode_question(
            validated.turns, validated.request.tools, begin_answer=not guided
        )

    def _inline_passages(
        self, documents: Sequence[InlineDocument], max_context: int
    ) -> list[Passage]:
        chars = sum(len(document.text) for document in documents)
        if chars > MAX_INLINE_CHARS_PER_TOKEN * max_context:
            raise PromptTooLong(
                f"inline_documents have {chars} characters, the model takes {max_context} tokens: "
                "send less text",
                field="inline_documents",
            )
        return inline_passages(documents, self._prompts.chunking())

    def _plan(
        self,
        validated: ValidatedRequest,
        found: _Found,
        traceparent: str,
        send_hint: SendHint | None,
    ) -> PreparedRequest:
        started = time.perf_counter()
        request, result = validated.request, found.result
        passages = result.passages
        if validated.search is not None:  # else they came with the request, in its order
            passages = self._prompts.format.in_prompt_order(passages)
        documents = self._behind.in_prompt([passage.chunk for passage in passages])
        alone = None
        if not documents:
            alone = self._prompts.encode_alone(validated.turns, request.tools)
        question = found.question if alone is None else alone
        if question is None:
            chars = sum(len(turn.text) for turn in validated.turns)
            if documents and send_hint is not None and chars > PREFETCH_MIN_CHARS:
                send_hint(self._hint(validated, documents))
            question = self._question(validated)
        plan = self._prompt_plan(validated, documents, question, alone=alone is not None)
        plan_s = time.perf_counter() - started
        max_tokens, lowered = self._max_tokens(validated, plan)
        warnings = [*result.warnings, *lowered]
        if validated.search is not None and not passages:
            why = self._passages.why_nothing(request, validated.search, result)
            warnings.append(f"{why}: the answer cites nothing")
        generate = Generate(
            id=f"rag-{uuid.uuid4().hex}",
            system=plan.system,
            documents=plan.documents,
            question=plan.question,
            fusion=validated.fusion,
            eviction=validated.eviction,
            sampling=sampling(request, max_tokens),
            prefix_mode=self._prompts.prefix_mode,
            tenant=validated.scope.tenant,
            traceparent=traceparent,
            token_fates=request.include_tokens,
            cold=request.cold or self._settings.cold,
            prefix_cache=request.prefix_cache,
        )
        citations = response.citations(passages, with_text=request.include_text)
        stages = {"embed": result.embed_s, "retrieve": result.retrieve_s, "plan": plan_s}
        if request.rerank:
            stages["rerank"] = result.rerank_s
        return PreparedRequest(generate, passages, citations, plan.tokens, stages, warnings)

    def _hint(self, validated: ValidatedRequest, documents: list[Chunk]) -> Prefetch:
        return Prefetch(
            validated.fusion.name,
            self._prompts.system,
            documents,
            self._prompts.prefix_mode,
            validated.scope.tenant,
        )

    def _prompt_plan(
        self,
        validated: ValidatedRequest,
        documents: list[Chunk],
        question: list[int],
        *,
        alone: bool,
    ) -> PromptPlan:
        try:
            return self._prompts.plan(
                documents, question, max_context=validated.max_context, alone=alone
            )
        except PromptTooLong as error:
            if validated.request.inline_documents is None:
                raise
            # There is no top_k to lower, so the remedy is another one.
            sizes = error.message.partition(":")[0]
            raise PromptTooLong(
                f"{sizes}: send less text in inline_documents", field="inline_documents"
            ) from error

    def _max_tokens(self, validated: ValidatedRequest, plan: PromptPlan) -> tuple[int, list[str]]:
        """max_tokens as it fits after the prompt, and a warning if that is less than wanted."""
        wanted = validated.request.max_tokens
        room = min(validated.max_context - plan.tokens, self._settings.max_tokens_limit)
        if wanted is None:
            return min(self._prompts.format.max_tokens, room), []
        if wanted <= room:
            return wanted, []
        return room, [
            f"max_tokens was lowered from {wanted} to {room}: the prompt has {plan.tokens} tokens"
        ]
