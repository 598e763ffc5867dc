"""From a validated request to the message that the worker gets.

    choose what is searched ── find passages ── encode them ── hint to the worker
                                             ── encode the question ── check length ── Generate

All but the first runs in one visit to a search thread, because a change of threads costs a quarter
of a millisecond. Only a request with a reranker leaves the thread in between.
"""

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvstitch.retriever import Chunk, ChunkSettings, Passage
from kvstitch.retriever.scope import EVERYBODY
from kvstitch.service.errors import InvalidRequest, PromptTooLong
from kvstitch.service.gateway.answers.attributor import asking_for_marks
from kvstitch.service.gateway.answers.forms import AnswerForms
from kvstitch.service.gateway.answers.methods import AUTO, NAMES
from kvstitch.service.gateway.answers.question_rewriting import joined_query, rewritten
from kvstitch.service.gateway.answers.unanswerable import only_a_model_answers, sentence
from kvstitch.service.gateway.answers.validation import AnswerPlan
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prompts.chunk_prefixes import ChunkPrefixes
from kvstitch.service.gateway.prompts.prompt_builder import (
    MAX_CHARS_PER_TOKEN,
    PromptBuilder,
    context_length,
)
from kvstitch.service.gateway.schemas.generate import InlineDocument
from kvstitch.service.gateway.search.passage_search import FoundPassages, PassageSearch, citations
from kvstitch.service.messages.requests import Generate, Prefetch
from kvstitch.service.settings import Settings

FIRST_CHUNK_ID = -2  # -1 is the system prompt's


def inline_passages(
    documents: Sequence[InlineDocument], chunking: ChunkSettings, max_context: int
) -> list[Passage]:
    """Return every chunk of the documents, in order, with a score of 1: nothing was searched."""
    chars = sum(len(document.text) for document in documents)
    if chars > MAX_CHARS_PER_TOKEN * max_context:
        raise PromptTooLong(
            f"{context_length(max_context)} and inline_documents have {chars} characters: send "
            "less text",
            field="inline_documents",
        )
    out: list[Passage] = []
    seen: set[str] = set()
    for number, document in enumerate(documents):
        where = f"inline_documents[{number}]"
        if not document.text.strip():
            raise InvalidRequest(f"{where}.text is empty: send its text", field=f"{where}.text")
        doc_id = document.doc_id or f"inline-{number + 1}"
        if doc_id in seen:
            raise InvalidRequest(
                f"{where}.doc_id {doc_id!r} is another document's: citations could not tell them "
                "apart",
                field=f"{where}.doc_id",
            )
        seen.add(doc_id)
        for ordinal, span in enumerate(chunking.split(document.text, document.title)):
            chunk = Chunk(
                chunk_id=FIRST_CHUNK_ID - len(out),
                doc_id=doc_id,
                ordinal=ordinal,
                text=span.text(document.text),
                title=document.title,
                char_start=span.start,
                char_end=span.end,
                tokens=span.tokens,
                revision="",
            )
            out.append(Passage(chunk, 1.0))
    return out


# A conversation this long takes longer to encode than the worker takes to read KV ahead. For a
# shorter one the request itself comes as soon, and handling the hint would delay it (by 1.2 ms with
# all KV in memory).
PREFETCH_MIN_CHARS = 1000


@dataclass(frozen=True)
class RequestPreparer:
    """Finds passages and writes the prompt. Stateless."""

    worker: Worker
    passages: PassageSearch
    prompts: PromptBuilder
    prefixes: ChunkPrefixes
    settings: Callable[[], Settings]
    forms: AnswerForms

    async def prepare(
        self, plan: AnswerPlan, *, traceparent: str = "", prefetch: bool = True
    ) -> None:
        """Complete a plan; raises what only a search or the tokenizer can find out. `traceparent`:
        the span that the worker's spans belong to (empty: none); `prefetch`: whether the worker may
        bring chunks closer while a long question is encoded."""
        plan.form = await self.forms.written(plan.request.guided, plan.scope.tenant)
        joined = None if plan.search is None else joined_query(plan.turns, plan.search.text)
        if plan.search is None or joined is None or plan.condense == "off":
            plan.condense = "off"
        elif plan.condense == "join" or not await self._rewrite(plan):
            plan.search, plan.condense = replace(plan.search, joined=joined), "join"
        texts = [turn.text for turn in plan.turns]
        texts += [] if plan.request.tools is None else [plan.request.tools.text]
        # A token has a byte at least. Embedding a question that does not fit takes seconds in vain.
        if sum(len(text.encode()) for text in texts) > plan.max_context // 2:
            await asyncio.to_thread(self._check_question, plan)
        hinting = asyncio.get_running_loop() if prefetch else None
        await self.passages.search(
            lambda: self._given(plan) if plan.search is None else self.passages.find(plan.search),
            lambda found: self._complete(plan, found, traceparent, hinting),
            rerank=plan.search is not None and plan.search.rerank,
        )

    async def _rewrite(self, plan: AnswerPlan) -> bool:
        """Have the model say what a question that follows others asks for, and search that."""
        assert plan.search is not None
        started = time.perf_counter()
        text, tokens = await rewritten(plan.turns, self.worker, self.prompts, plan.scope.tenant)
        plan.condense_s, plan.condense_tokens = time.perf_counter() - started, tokens
        if not text:
            plan.warnings.append(
                "the model did not rewrite the question: it was joined with earlier ones"
            )
            return False
        plan.search = replace(plan.search, text=text)
        return True

    def _check_question(self, plan: AnswerPlan) -> None:
        """Encode the question, and raise PromptTooLong if it does not fit by itself."""
        plan.question_ids = self.prompts.encode_question(
            plan.turns, plan.request.tools, begin_answer=plan.begins
        )
        self.prompts.check_length([], plan.question_ids, max_context=plan.max_context)

    # -- on a search thread ----------------------------------------------------------------------

    def _given(self, plan: AnswerPlan) -> FoundPassages:
        """Return the passages that came with the request, in its order; nothing is searched."""
        request, passages = plan.request, list[Passage]()
        if request.inline_documents is not None:
            chunking = self.prompts.chunking()
            passages = inline_passages(request.inline_documents, chunking, plan.max_context)
        elif request.documents is not None:
            self.passages.require_documents(request.documents, plan.scope)
        return FoundPassages(None, passages)

    def _about_the_question(self, plan: AnswerPlan, found: FoundPassages) -> FoundPassages:
        """Leave out passages that are not about the question, and plan what is done about it."""
        plan.relevance = None if found.relevance is None else round(found.relevance, 4)
        if found.is_about_the_question:
            return found
        plan.unanswered = plan.unanswerable
        if plan.unanswered == "answer":
            return found
        plan.begins, plan.question_ids = False, None
        if plan.unanswered == "say" and only_a_model_answers(plan.request):
            plan.unanswered = "model"
        if plan.unanswered == "say":
            plan.said = sentence(plan.question, self.settings().unanswerable_text)
        return replace(found, passages=[])

    def _complete(
        self,
        plan: AnswerPlan,
        found: FoundPassages,
        traceparent: str,
        hinting: asyncio.AbstractEventLoop | None,
    ) -> None:
        started = time.perf_counter()
        request, turns, prompts = plan.request, plan.turns, self.prompts
        found = self._about_the_question(plan, found)
        plan.search, plan.passages = found.query, found.passages
        if found.query is not None:  # else they came with the request, in its order
            plan.passages = prompts.format.in_prompt_order(found.passages)
        documents = self.prefixes.in_prompt([passage.chunk for passage in plan.passages])
        if not documents and plan.begins:  # the words speak of documents
            plan.begins, plan.question_ids = False, None
        if request.cite == "inline" and plan.passages:
            titles = [passage.chunk.title or passage.chunk.doc_id for passage in plan.passages]
            turns, plan.question_ids = asking_for_marks(turns, titles), None
        alone = None if documents else prompts.encode_alone(turns, request.tools)
        question = plan.question_ids if alone is None else alone
        if question is None:
            chars = sum(len(turn.text) for turn in plan.turns)
            if documents and hinting is not None and chars > PREFETCH_MIN_CHARS:
                hint = Prefetch(
                    plan.fusion.name,
                    prompts.system,
                    documents,
                    prompts.prefix_mode,
                    plan.scope.tenant,
                    plan.adapter,
                )
                # The worker's client belongs to the event loop.
                hinting.call_soon_threadsafe(self.worker.prefetch, hint)
            question = prompts.encode_question(turns, request.tools, begin_answer=plan.begins)
        plan.prompt_tokens = prompts.check_length(
            documents,
            question,
            max_context=plan.max_context,
            alone=alone is not None,
            inline=request.inline_documents is not None,
        )
        plan.stages = {"embed": found.embed_s, "retrieve": found.retrieve_s}
        plan.stages["plan"] = time.perf_counter() - started
        if request.rerank:
            plan.stages["rerank"] = found.rerank_s
        if plan.condense_s:
            plan.stages["condense"] = plan.condense_s
        plan.warnings = [*found.warnings, *plan.warnings]
        room = min(plan.max_context - plan.prompt_tokens, self.settings().max_tokens_limit)
        sampling = plan.sampling(room, prompts.format.max_tokens)
        if found.query is not None and not plan.passages:
            why = self.passages.why_nothing(request, found)
            plan.warnings.append(f"{why}: the answer cites nothing")
        plan.citations = citations(
            plan.passages,
            with_text=request.include_text,
            urls={} if found.query is None else self.passages.urls_of(plan.passages, plan.scope),
        )
        history, view = 0, ""
        if documents and any(turn.role == "assistant" for turn in turns):
            history = prompts.history_tokens(turns, request.tools, question)
        if any(passage.chunk.readers != EVERYBODY for passage in plan.passages):
            # A name of what the sender may read: others may not read all of the passages.
            view = hashlib.blake2b(plan.scope.view.name.encode(), digest_size=16).hexdigest()
        least = self.settings().exact_below
        plan.generate = Generate(
            id=f"rag-{uuid.uuid4().hex}",
            system=prompts.system if alone is None else [],
            documents=documents,
            question=question,
            fusion=plan.fusion,
            eviction=plan.eviction,
            sampling=sampling,
            prefix_mode=prompts.prefix_mode,
            tenant=plan.scope.tenant,
            traceparent=traceparent,
            token_fates=request.include_tokens,
            cold=request.cold or self.settings().cold,
            exact_below=least if request.exact_below is None else request.exact_below,
            prefix_cache=request.prefix_cache,
            lora=plan.adapter,
            history=history,
            history_mode=request.history or self.settings().history,
            any_method=request.fusion is None or request.fusion.method in (AUTO, *NAMES),
            view=view,
        )
        if plan.said:
            plan.prompt_tokens = 0  # no model is asked
