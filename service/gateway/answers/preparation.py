"""From a validated request to the message that the worker gets.

    choose what is searched ── find passages ── encode them ── hint to the worker
                                             ── encode the question ── check length ── Generate

All but the first runs in one visit to a search thread, because a change of threads costs a quarter
of a millisecond. Only a request with a reranker leaves the thread in between.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from service.errors import PromptTooLong
from service.gateway.answers.answer_plan import AnswerPlan
from service.gateway.answers.attribution.marks import asking_for_marks
from service.gateway.answers.follow_ups import find_with_joined, joined_query
from service.gateway.answers.inline_documents import inline_passages
from service.gateway.answers.question_rewriting import QuestionRewriter
from service.gateway.answers.sampling import sampling
from service.gateway.prompts.precomputed_behind import PrecomputedBehind
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.search.async_retriever import AsyncRetriever
from service.gateway.search.passage_search import FoundPassages, PassageSearch, citations
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


class RequestPreparer:
    """Finds passages and writes the prompt. Stateless."""

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
        self._rewriter = QuestionRewriter(worker, prompts)
        self._prompts = prompts
        self._settings = settings

    async def prepare(
        self, plan: AnswerPlan, *, traceparent: str = "", prefetch: bool = True
    ) -> None:
        """Complete a plan.

        Args:
            plan: From validation.
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

        def complete(found: FoundPassages, question: list[int] | None) -> None:
            self._complete(plan, found, question, traceparent, send_hint if prefetch else None)

        await self._choose_search(plan)
        if plan.search is None or not plan.search.rerank:
            return await self._retriever.run(lambda: complete(*self._find(plan)))
        found, question = await self._retriever.run(self._find, plan)
        compared = replace(plan.search, text=plan.joined or plan.search.text)
        found = await self._passages.rerank(compared, found)
        await self._retriever.run(complete, found, question)

    async def _choose_search(self, plan: AnswerPlan) -> None:
        """Decide what is searched for a question that follows others.

        off     the question as it is
        join    the question, and beside it the question joined with the user's earlier ones
        model   what the served model makes of question and conversation; join, if that fails
        """
        joined = None if plan.search is None else joined_query(plan.turns)
        if plan.search is None or joined is None or plan.condense == "off":
            plan.condense = "off"
            return
        if plan.condense == "model":
            started = time.perf_counter()
            made = await self._rewriter.rewrite(plan.turns, tenant=plan.scope.tenant)
            plan.condense_s, plan.condense_tokens = time.perf_counter() - started, made.tokens
            if made.text is not None:
                plan.search = replace(plan.search, text=made.text)
                return
            plan.warnings.append(
                "the model did not rewrite the question: it was joined with earlier ones"
            )
        plan.joined, plan.condense = joined, "join"

    # -- on a search thread ----------------------------------------------------------------------

    def _find(self, plan: AnswerPlan) -> tuple[FoundPassages, list[int] | None]:
        """Find passages, the best first, or take those that came with the request, in its order.

        Returns:
            The passages, and the question's ids if they had to be known before the search.
        """
        question = self._encode_if_long(plan)
        request = plan.request
        if request.inline_documents is not None:
            chunking = self._prompts.chunking()
            inline = inline_passages(request.inline_documents, chunking, plan.max_context)
            return FoundPassages(inline), question
        if plan.search is not None:
            found, plan.joined = find_with_joined(self._passages, plan.search, plan.joined)
            return found, question
        if request.documents is not None:
            self._passages.require_documents(request.documents, plan.scope)
        return FoundPassages([]), question

    def _encode_if_long(self, plan: AnswerPlan) -> list[int] | None:
        """The ids of a question that may not fit, because embedding it in vain takes seconds.

        A token has at least one byte, so a question of fewer bytes surely fits.
        """
        question_bytes = sum(len(turn.text.encode()) for turn in plan.turns)
        tools = plan.request.tools
        question_bytes += 0 if tools is None else len(tools.text.encode())
        if question_bytes <= plan.max_context // 2:
            return None
        question = self._question(plan, plan.turns)
        self._prompts.check_length([], question, max_context=plan.max_context)
        return question

    def _question(self, plan: AnswerPlan, turns: Sequence[Turn]) -> list[int]:
        guided = plan.request.guided is not None
        return self._prompts.encode_question(turns, plan.request.tools, begin_answer=not guided)

    def _complete(
        self,
        plan: AnswerPlan,
        found: FoundPassages,
        question: list[int] | None,
        traceparent: str,
        send_hint: SendHint | None,
    ) -> None:
        started = time.perf_counter()
        request = plan.request
        plan.passages = found.passages
        if plan.search is not None:  # else they came with the request, in its order
            plan.passages = self._prompts.format.in_prompt_order(found.passages)
        documents = self._behind.in_prompt([passage.chunk for passage in plan.passages])
        alone = None if documents else self._prompts.encode_alone(plan.turns, request.tools)
        turns = plan.turns
        if alone is not None:
            question = alone
        elif request.cite == "inline" and plan.passages:
            titles = [passage.chunk.title or passage.chunk.doc_id for passage in plan.passages]
            turns, question = asking_for_marks(turns, titles), None
        if question is None:
            chars = sum(len(turn.text) for turn in plan.turns)
            if documents and send_hint is not None and chars > PREFETCH_MIN_CHARS:
                send_hint(self._hint(plan, documents))
            question = self._question(plan, turns)
        prompt_tokens = self._checked_length(plan, documents, question, alone=alone is not None)
        plan_s = time.perf_counter() - started
        max_tokens, lowered = self._max_tokens(plan, prompt_tokens)
        plan.warnings = [*found.warnings, *plan.warnings, *lowered]
        if plan.search is not None and not plan.passages:
            why = self._passages.why_nothing(request, plan.search, found)
            plan.warnings.append(f"{why}: the answer cites nothing")
        plan.generate = Generate(
            id=f"rag-{uuid.uuid4().hex}",
            system=self._prompts.system if alone is None else [],
            documents=documents,
            question=question,
            fusion=plan.fusion,
            eviction=plan.eviction,
            sampling=sampling(request, max_tokens),
            prefix_mode=self._prompts.prefix_mode,
            tenant=plan.scope.tenant,
            traceparent=traceparent,
            token_fates=request.include_tokens,
            cold=request.cold or self._settings.cold,
            prefix_cache=request.prefix_cache,
            lora=plan.adapter,
        )
        plan.citations = citations(
            plan.passages, with_text=request.include_text, urls=self._urls(plan)
        )
        plan.stages = {"embed": found.embed_s, "retrieve": found.retrieve_s, "plan": plan_s}
        if request.rerank:
            plan.stages["rerank"] = found.rerank_s
        if plan.condense_s:
            plan.stages["condense"] = plan.condense_s

    def _urls(self, plan: AnswerPlan) -> dict[str, str]:
        """By doc_id, of the stored documents whose metadata have one."""
        if plan.search is None:
            return {}
        infos = self._passages.documents_of(plan.passages, plan.scope)
        urls = {doc_id: info.metadata.get("url") for doc_id, info in infos.items()}
        return {doc_id: url for doc_id, url in urls.items() if isinstance(url, str) and url}

    def _hint(self, plan: AnswerPlan, documents: list[ChunkTokens]) -> Prefetch:
        return Prefetch(
            plan.fusion.name,
            self._prompts.system,
            documents,
            self._prompts.prefix_mode,
            plan.scope.tenant,
            plan.adapter,
        )

    def _checked_length(
        self, plan: AnswerPlan, documents: list[ChunkTokens], question: list[int], *, alone: bool
    ) -> int:
        try:
            return self._prompts.check_length(
                documents, question, max_context=plan.max_context, alone=alone
            )
        except PromptTooLong as error:
            if plan.request.inline_documents is None:
                raise
            # There is no top_k to lower, so the remedy is another one.
            sizes = error.message.partition(":")[0]
            raise PromptTooLong(
                f"{sizes}: send less text in inline_documents", field="inline_documents"
            ) from error

    def _max_tokens(self, plan: AnswerPlan, prompt_tokens: int) -> tuple[int, list[str]]:
        """max_tokens as it fits after the prompt, and a warning if that is less than wanted."""
        wanted = plan.request.max_tokens
        room = min(plan.max_context - prompt_tokens, self._settings.max_tokens_limit)
        if wanted is None:
            usual = self._prompts.format.max_tokens
            if plan.request.tools is not None or plan.request.guided is not None:
                usual = max(usual, STRUCTURED_MAX_TOKENS)
            return min(usual, room), []
        if wanted <= room:
            return wanted, []
        return room, [
            f"max_tokens was lowered from {wanted} to {room}: the prompt has {prompt_tokens} tokens"
        ]
