"""From a request to the message the worker gets: check, find passages, plan the prompt.

    check ── methods ── embed, search (or inline documents) ── prefetch ── plan ── Prepared

The same for an answer and for its explanation. Knows no HTTP, admission or tensors.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from retriever import Filter, Passage, Scope, parse_filter
from retriever.errors import InvalidQuery
from service.errors import InvalidRequest, NotFound, PromptTooLong
from service.gateway import inline
from service.gateway.call import Call
from service.gateway.conversation import normalised
from service.gateway.library import Found, Library
from service.gateway.methods import check_together, chosen
from service.gateway.prompts import Prompts
from service.gateway.schemas import GenerateRequest
from service.gateway.schemas.generate import InlineDocument
from service.gateway.scopes import scope_of
from service.gateway.worker import Worker
from service.messages import Chunk, Generate, Method, Prefetch, Ready, Sampling
from service.prompt import PromptPlan, Turn
from service.settings import Settings

# Of inline documents: more text than this per token of context cannot fit, and is not encoded.
CHARS_PER_TOKEN = 32
# A conversation this long takes longer to encode than the worker takes to read ahead of it. For a
# shorter one the request itself is there as soon, and handling a hint would hold it up (by 1.2 ms
# with everything in memory).
PREFETCH_CHARS = 1000


@dataclass(frozen=True)
class Checked:
    """A request that may be answered. `turns` are normalised."""

    request: GenerateRequest
    call: Call
    scope: Scope
    turns: list[Turn]
    top_k: int
    filter: Filter
    fusion: Method
    eviction: Method | None

    @property
    def question(self) -> str:
        """What passages are searched for."""
        return self.turns[-1].text


@dataclass(frozen=True)
class Prepared:
    """`tokens` are the prompt's; `stages` holds the seconds of embed, retrieve and plan."""

    found: Found
    generate: Generate
    tokens: int
    stages: dict[str, float]
    warnings: list[str]

    def traced(self, traceparent: str) -> Prepared:
        """As part of that span."""
        return replace(
            self, generate=msgspec.structs.replace(self.generate, traceparent=traceparent)
        )


class Preparer:
    """Holds no state of its own."""

    def __init__(
        self, worker: Worker, library: Library, prompts: Prompts, settings: Settings
    ) -> None:
        self._worker = worker
        self._library = library
        self._prompts = prompts
        self._settings = settings

    def check(self, request: GenerateRequest, call: Call) -> Checked:
        """Everything that takes no time. Raises InvalidRequest, WorkerUnavailable."""
        turns = self._turns(request)
        top_k = self._top_k(request)
        scope = scope_of(call.principal, request.collection)
        where = _filter(request)
        ready = self._worker.require()
        self._library.require()
        fusion, eviction = self._methods(request, ready)
        return Checked(request, call, scope, turns, top_k, where, fusion, eviction)

    def estimate(self, checked: Checked) -> int:
        """About how many tokens the prompt will have."""
        texts = checked.request.inline_documents
        if texts is None:
            return self._prompts.estimate(checked.turns, checked.top_k)
        inline_tokens = sum(len(document.text) for document in texts) // 3
        return self._prompts.estimate(checked.turns, 0) + inline_tokens

    async def prepare(self, checked: Checked, *, prefetch: bool = True) -> Prepared:
        """`prefetch`: let the worker bring the chunks closer meanwhile.

        Raises InvalidRequest, PromptTooLong, NotFound."""
        request = checked.request
        context = self._worker.require().model.max_context
        await self._check_length(checked, context)
        found = await self._find(checked, context)
        started = time.perf_counter()
        plan = await self._plan(checked, found, context, prefetch)
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
        plan_s = time.perf_counter() - started
        stages = {"embed": found.embed_s, "retrieve": found.retrieve_s, "plan": plan_s}
        if request.rerank:
            stages["rerank"] = found.rerank_s
        return Prepared(found, generate, plan.tokens, stages, warnings)

    # -- checks ----------------------------------------------------------------------------------

    def _turns(self, request: GenerateRequest) -> list[Turn]:
        if (request.question is None) == (request.messages is None):
            raise InvalidRequest(
                "send either question or messages"
                if request.question is not None
                else "question is missing: send it, or messages",
                field="question",
            )
        if request.question is not None and not request.question.strip():
            raise InvalidRequest("question is empty: send the question's text", field="question")
        field = "question" if request.messages is None else "messages"
        chars = sum(len(turn.text) for turn in request.turns)
        if chars > (limit := self._settings.max_question_chars):
            raise InvalidRequest(
                f"{field} has {chars} characters, the limit is {limit}: shorten it", field=field
            )
        return normalised(request.turns)

    def _top_k(self, request: GenerateRequest) -> int:
        limit = self._settings.max_top_k
        top_k = self._prompts.format.top_k if request.top_k is None else request.top_k
        if top_k > limit:
            raise InvalidRequest(f"top_k must be at most {limit}, not {top_k}", field="top_k")
        if request.documents is not None and not request.documents:
            raise InvalidRequest(
                "documents is empty: name documents, or leave it out to search all of them",
                field="documents",
            )
        if request.inline_documents is not None:
            _refuse_searching(request)
        return top_k

    def _methods(self, request: GenerateRequest, ready: Ready) -> tuple[Method, Method | None]:
        fusion = chosen("fusion", request.fusion, ready.fusion)
        eviction = None
        if request.eviction is not None:
            eviction = chosen("eviction", request.eviction, ready.eviction)
        check_together(fusion, eviction, ready.fusion)
        return fusion, eviction

    # -- passages and prompt ---------------------------------------------------------------------

    async def _check_length(self, checked: Checked, context: int) -> None:
        """Embedding a question that cannot fit would take seconds. A token is a byte at least:
        what cannot be too long is not counted here."""
        if sum(len(turn.text.encode()) for turn in checked.turns) > context // 2:
            await self._library.in_search_thread(
                lambda: self._prompts.plan([], checked.turns, max_context=context)
            )

    async def _find(self, checked: Checked, context: int) -> Found:
        request = checked.request
        if (documents := request.inline_documents) is not None:
            chars = sum(len(document.text) for document in documents)
            if chars > CHARS_PER_TOKEN * context:
                raise PromptTooLong(
                    f"inline_documents have {chars} characters, the model takes {context} tokens: "
                    "send less text",
                    field="inline_documents",
                )
            return Found(await self._cut(documents), 0.0, 0.0)
        if request.documents is not None:
            unknown = await self._library.unknown(request.documents, scope=checked.scope)
            if unknown:
                raise NotFound(
                    f"documents: there is no document {unknown[0]!r}; GET /admin/documents lists "
                    "what there is",
                    field="documents",
                )
        if not checked.top_k:
            return Found([], 0.0, 0.0)
        return await self._library.search(
            checked.question,
            checked.top_k,
            request.documents,
            checked.filter,
            scope=checked.scope,
            mode=request.retrieval or self._settings.retrieval,
            reranked=request.rerank,
        )

    async def _cut(self, documents: Sequence[InlineDocument]) -> list[Passage]:
        chunking = self._prompts.chunking()
        return await self._library.in_search_thread(lambda: inline.passages(documents, chunking))

    async def _plan(
        self, checked: Checked, found: Found, context: int, prefetch: bool
    ) -> PromptPlan:
        """The prompt; where the rest of it takes long to plan, the worker hears about the
        documents before."""
        passages = [passage.chunk for passage in found.passages]
        chars = sum(len(turn.text) for turn in checked.turns)
        loop = asyncio.get_running_loop()

        def lay_out() -> PromptPlan:
            documents = self._prompts.segments(passages)
            if documents and prefetch and chars > PREFETCH_CHARS:
                chunks = [Chunk(d.chunk_id, d.ids) for d in documents]
                fusion, mode = checked.fusion.name, self._prompts.prefix_mode
                tenant = checked.scope.tenant
                coming = Prefetch(fusion, self._prompts.system, chunks, mode, tenant)
                loop.call_soon_threadsafe(self._worker.prefetch, coming)
            return self._prompts.plan(documents, checked.turns, max_context=context)

        try:
            # One thread for all of it: every change of threads costs half a millisecond.
            return await self._library.in_search_thread(lay_out)
        except PromptTooLong as error:
            if checked.request.inline_documents is None:
                raise
            sizes = error.message.partition(":")[0]
            raise PromptTooLong(
                f"{sizes}: send less text in inline_documents", field="inline_documents"
            ) from error

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


def _refuse_searching(request: GenerateRequest) -> None:
    for name in ("top_k", "documents", "collection", "filter", "retrieval", "rerank"):
        if getattr(request, name) not in (None, False):
            raise InvalidRequest(
                f"{name} chooses among stored documents, and inline_documents are used instead of "
                "these: leave one of the two out",
                field=name,
            )


def _filter(request: GenerateRequest) -> Filter:
    try:
        return parse_filter(request.filter or {})
    except InvalidQuery as error:
        message = str(error)
        raise InvalidRequest(message, field=message.partition(":")[0]) from error
