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
from dataclasses import dataclass, replace

from service.errors import PromptTooLong
from service.gateway.answers import response
from service.gateway.answers.attribution.inline import asking_for_marks
from service.gateway.answers.condensing.condenser import Condensed
from service.gateway.answers.prepared_request import PreparedRequest
from service.gateway.answers.preparing.passage_finding import PassageFinder, retrieval_note
from service.gateway.answers.preparing.token_choice import sampling
from service.gateway.answers.validating.validation import ValidatedRequest
from service.gateway.prompts.conversation import question_of
from service.gateway.prompts.precomputed_behind import PrecomputedBehind
from service.gateway.prompts.prompt_builder import PromptBuilder, PromptPlan
from service.gateway.retrieval.async_retriever import AsyncRetriever, RetrievalResult
from service.gateway.worker_client.protocol import Worker
from service.messages.requests import ChunkTokens, Generate, Prefetch
from service.prompt import Turn
from service.settings import Settings

# A conversation this long takes longer to encode than the worker takes to read KV ahead. For a
# shorter one the request itself comes as soon, and handling the hint would delay it (by 1.2 ms with
# all KV in memory).
PREFETCH_MIN_CHARS = 1000

# Tokens of an answer that may be a call or must have a form, where the request does not say: it is
# worth nothing if it is cut off, and models' defaults are made for sentences.
STRUCTURED_MAX_TOKENS = 512

SendHint = Callable[[Prefetch], None]


@dataclass(frozen=True)
class _Found:
    """Passages, the question's ids if they had to be known before the search, and what was searched
    for; None: nothing."""

    result: RetrievalResult
    question: list[int] | None
    condensed: Condensed | None


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
        self._finder = PassageFinder(worker, retriever, prompts, settings)
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

        condensed = await self._finder.condense(validated)
        if condensed is None or not condensed.search.rerank:
            return await self._retriever.run_blocking(
                lambda: plan(self._find(validated, condensed))
            )
        found = await self._retriever.run_blocking(lambda: self._find(validated, condensed))
        reranked = await self._finder.rerank(found.condensed or condensed, found.result)
        return await self._retriever.run_blocking(lambda: plan(replace(found, result=reranked)))

    # -- on a search thread ----------------------------------------------------------------------

    def _find(self, validated: ValidatedRequest, condensed: Condensed | None) -> _Found:
        question = self._encode_if_long(validated)
        result, searched = self._finder.find(validated, condensed)
        return _Found(result, question, searched)

    def _encode_if_long(self, validated: ValidatedRequest) -> list[int] | None:
        """The ids of a question that may not fit, because embedding it in vain takes seconds.

        A token has at least one byte, so a question of fewer bytes surely fits.
        """
        question_bytes = sum(len(turn.text.encode()) for turn in validated.turns)
        tools = validated.request.tools
        question_bytes += 0 if tools is None else len(tools.text.encode())
        if question_bytes <= validated.max_context // 2:
            return None
        question = self._question(validated, validated.turns)
        self._prompts.check_length([], question, max_context=validated.max_context)
        return question

    def _question(self, validated: ValidatedRequest, turns: Sequence[Turn]) -> list[int]:
        guided = validated.request.guided is not None
        return self._prompts.encode_question(
            turns, validated.request.tools, begin_answer=not guided
        )

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
        turns = validated.turns
        if request.cite == "inline" and passages and alone is None:
            titles = [passage.chunk.title or passage.chunk.doc_id for passage in passages]
            turns, question = asking_for_marks(turns, titles), None
        if question is None:
            chars = sum(len(turn.text) for turn in validated.turns)
            if documents and send_hint is not None and chars > PREFETCH_MIN_CHARS:
                send_hint(self._hint(validated, documents))
            question = self._question(validated, turns)
        plan = self._prompt_plan(validated, documents, question, alone=alone is not None)
        plan_s = time.perf_counter() - started
        max_tokens, lowered = self._max_tokens(validated, plan)
        warnings = [*result.warnings, *lowered]
        if found.condensed is not None and not passages:
            why = self._finder.why_nothing(validated, found.condensed, result)
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
            lora=validated.adapter,
        )
        citations = response.citations(
            passages,
            with_text=request.include_text,
            urls=self._finder.urls(passages, validated),
        )
        stages = {"embed": result.embed_s, "retrieve": result.retrieve_s, "plan": plan_s}
        if request.rerank:
            stages["rerank"] = result.rerank_s
        if found.condensed is not None and found.condensed.seconds:
            stages["condense"] = found.condensed.seconds
        return PreparedRequest(
            request=request,
            question=question_of(validated.turns),
            generate=generate,
            passages=passages,
            citations=citations,
            retrieval=retrieval_note(found.condensed),
            prompt_tokens=plan.tokens,
            condense_tokens=0 if found.condensed is None else found.condensed.tokens,
            stages=stages,
            warnings=warnings,
        )

    def _hint(self, validated: ValidatedRequest, documents: list[ChunkTokens]) -> Prefetch:
        return Prefetch(
            validated.fusion.name,
            self._prompts.system,
            documents,
            self._prompts.prefix_mode,
            validated.scope.tenant,
            validated.adapter,
        )

    def _prompt_plan(
        self,
        validated: ValidatedRequest,
        documents: list[ChunkTokens],
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
            usual = self._prompts.format.max_tokens
            if validated.request.tools is not None or validated.request.guided is not None:
                usual = max(usual, STRUCTURED_MAX_TOKENS)
            return min(usual, room), []
        if wanted <= room:
            return wanted, []
        return room, [
            f"max_tokens was lowered from {wanted} to {room}: the prompt has {plan.tokens} tokens"
        ]
