"""The use case of an answer: POST /v1/rag/generate without the HTTP.

    open     check ── admit ── embed, search ── prefetch ── plan        errors become a status
    events   sources ── submit ── tokens to text, stop strings ── done  errors end the stream

Opening is here, events are in stream.py. Knows no HTTP and no tensors.
"""

from __future__ import annotations

import time
import uuid

from service.errors import InvalidRequest, NotFound
from service.gateway.access import Principal
from service.gateway.admission import Admission, Ticket
from service.gateway.library import Found, Library
from service.gateway.methods import check_together, chosen
from service.gateway.prompts import Prompts
from service.gateway.schemas import GenerateRequest
from service.gateway.stream import Answer, outcome_of
from service.gateway.worker import Worker
from service.messages import Chunk, Generate, Method, Prefetch, Sampling
from service.metrics import Metrics
from service.prompt import PromptPlan
from service.settings import Settings


class Answerer:
    """Opens answers. Everything it needs is handed in; it holds no state of its own."""

    def __init__(
        self,
        *,
        worker: Worker,
        library: Library,
        prompts: Prompts,
        admission: Admission,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self.worker = worker
        self.library = library
        self.prompts = prompts
        self.metrics = metrics
        self._admission = admission
        self._settings = settings

    async def open(self, request: GenerateRequest, arrived: float, principal: Principal) -> Answer:
        """An answer ready to stream; `arrived` is the request's time by time.perf_counter.

        Raises InvalidRequest and its kinds, NotFound, Overloaded, WorkerUnavailable.
        """
        fusion_label = "none"
        ticket: Ticket | None = None
        try:
            top_k = self._check(request)
            ready = self.worker.require()
            self.library.require()
            fusion = chosen("fusion", request.fusion, ready.fusion)
            fusion_label = fusion.name
            eviction = None
            if request.eviction is not None:
                eviction = chosen("eviction", request.eviction, ready.eviction)
            check_together(fusion, eviction, ready.fusion)
            ticket = self._admission.enter(self.prompts.estimate(request.question, top_k))
            return await self._prepare(request, arrived, principal, ticket, top_k, fusion, eviction)
        except BaseException as error:
            if ticket is not None:
                ticket.close()
            self.metrics.requests.labels(fusion_label, outcome_of(error)).inc()
            raise

    def _check(self, request: GenerateRequest) -> int:
        """What can be checked without the worker; returns top_k."""
        limits = self._settings
        if not request.question.strip():
            raise InvalidRequest("question is empty: send the question's text", field="question")
        if len(request.question) > limits.max_question_chars:
            raise InvalidRequest(
                f"question has {len(request.question)} characters, the limit is "
                f"{limits.max_question_chars}: shorten it",
                field="question",
            )
        top_k = self.prompts.format.top_k if request.top_k is None else request.top_k
        if top_k > limits.max_top_k:
            raise InvalidRequest(
                f"top_k must be at most {limits.max_top_k}, not {top_k}", field="top_k"
            )
        if request.documents is not None and not request.documents:
            raise InvalidRequest(
                "documents is empty: name documents, or leave it out to search all of them",
                field="documents",
            )
        return top_k

    async def _prepare(
        self,
        request: GenerateRequest,
        arrived: float,
        principal: Principal,
        ticket: Ticket,
        top_k: int,
        fusion: Method,
        eviction: Method | None,
    ) -> Answer:
        if request.documents is not None:
            unknown = await self.library.unknown(request.documents)
            if unknown:
                raise NotFound(
                    f"documents: there is no document {unknown[0]!r}; GET /admin/documents lists "
                    "what there is",
                    field="documents",
                )
        # Counting ids is cheap; embedding a question that cannot fit takes seconds.
        context = self.worker.require().model.max_context
        await self.library.in_search_thread(
            lambda: self.prompts.plan([], request.question, max_context=context)
        )
        found = Found([], 0.0, 0.0)
        if top_k:
            found = await self.library.search(request.question, top_k, request.documents)
        started = time.perf_counter()
        plan = await self._plan(request.question, found, fusion, principal.tenant)
        principal.spend_tokens(plan.tokens)
        max_tokens, warnings = self._room(request.max_tokens, plan)
        if top_k and not found.passages:
            warnings.append("there are no documents to answer from: the answer cites nothing")
        generate = Generate(
            id=f"rag-{uuid.uuid4().hex}",
            system=plan.system,
            documents=[Chunk(d.chunk_id, d.ids) for d in plan.documents],
            question=plan.question,
            fusion=fusion,
            eviction=eviction,
            sampling=Sampling(max_tokens, request.temperature, request.top_p, request.seed),
            prefix_mode=self.prompts.prefix_mode,
            tenant=principal.tenant,
        )
        plan_s = time.perf_counter() - started
        stages = {"embed": found.embed_s, "retrieve": found.retrieve_s, "plan": plan_s}
        return Answer(
            self.worker,
            self.prompts,
            self.metrics,
            request,
            generate,
            principal,
            ticket,
            found,
            stages,
            arrived,
            warnings,
        )

    async def _plan(self, question: str, found: Found, fusion: Method, tenant: str) -> PromptPlan:
        """Segments of ids; the worker hears about the documents before the rest is planned."""
        passages = [passage.chunk for passage in found.passages]
        in_thread = self.library.in_search_thread
        documents = await in_thread(lambda: self.prompts.segments(passages))
        if documents:
            chunks = [Chunk(d.chunk_id, d.ids) for d in documents]
            self.worker.prefetch(
                Prefetch(fusion.name, self.prompts.system, chunks, self.prompts.prefix_mode, tenant)
            )
        context = self.worker.require().model.max_context
        return await in_thread(lambda: self.prompts.plan(documents, question, max_context=context))

    def _room(self, wanted: int | None, plan: PromptPlan) -> tuple[int, list[str]]:
        """max_tokens as it fits behind the prompt, and a warning if that is less than asked."""
        room = self.worker.require().model.max_context - plan.tokens
        room = min(room, self._settings.max_tokens_limit)
        if wanted is None:
            return min(self.prompts.format.max_tokens, room), []
        if wanted <= room:
            return wanted, []
        return room, [
            f"max_tokens was lowered from {wanted} to {room}: the prompt has {plan.tokens} tokens"
        ]
