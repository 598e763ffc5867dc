"""Decides whether a request can be answered, before any work is done, and plans the answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvstitch.records.answers import Citation, Condense, RetrievalNote, Unanswerable
from kvstitch.records.base import filled
from kvstitch.retriever import Passage, Scope
from kvstitch.service.errors import PromptTooLong
from kvstitch.service.gateway.admission import CallContext
from kvstitch.service.gateway.answers.methods import DefaultMethods, chosen_adapter
from kvstitch.service.gateway.answers.unanswerable import is_small_talk
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prompts.conversation import normalize_turns, question_of
from kvstitch.service.gateway.prompts.prompt_builder import (
    MAX_CHARS_PER_TOKEN,
    PromptBuilder,
    context_length,
)
from kvstitch.service.gateway.schemas.generate import GenerateRequest
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.gateway.search.search_query import SearchQuery, search_query
from kvstitch.service.grammars.forms import WrittenForm
from kvstitch.service.messages.requests import Generate, Method, Sampling
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import Settings

# Tokens of an answer that may be a call or must have a form, where the request does not say: it is
# worth nothing if it is cut off, and models' defaults are made for sentences.
STRUCTURED_MAX_TOKENS = 512


@dataclass(kw_only=True)
class AnswerPlan:
    """What the gateway knows of an answer. Validation makes it, preparation completes it."""

    request: GenerateRequest
    scope: Scope
    turns: list[Turn]
    search: SearchQuery | None
    unanswerable: Unanswerable
    condense: Condense
    fusion: Method
    eviction: Method | None
    adapter: str
    max_context: int
    estimated_tokens: int
    question_ids: list[int] | None = None
    condense_s: float = 0.0
    condense_tokens: int = 0
    passages: list[Passage] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    generate: Generate = field(init=False, repr=False)
    prompt_tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    form: WrittenForm | None = None
    relevance: float | None = None
    unanswered: Unanswerable | None = None  # what is done: nothing found is about the question
    said: str = ""  # instead of what a model writes
    begins: bool = True  # the prompt begins the answer, as if it came from documents

    @property
    def question(self) -> str:
        return question_of(self.turns)

    @property
    def names(self) -> dict[int, dict[str, Any]]:
        """Chunk id to what clients call the chunk and its document."""
        chunks = [passage.chunk for passage in self.passages]
        return {c.chunk_id: {"doc_id": c.doc_id, "chunk_id": c.public_id} for c in chunks}

    @property
    def retrieval(self) -> RetrievalNote | None:
        """What was searched for, as the client gets it; None: nothing."""
        if self.search is None:
            return None
        return RetrievalNote(
            query=self.search.text, joined=self.search.joined, condense=self.condense
        )

    def sampling(self, room: int, usual: int) -> Sampling:
        """Return how the worker chooses the answer's tokens: at most `room`, and `usual` where the
        request does not say. What it does not get of the request is a warning."""
        request, form = self.request, self.form
        if request.max_tokens is None:
            structured = request.tools is not None or request.guided is not None
            max_tokens = min(max(usual, STRUCTURED_MAX_TOKENS) if structured else usual, room)
        elif (max_tokens := min(request.max_tokens, room)) < request.max_tokens:
            self.warnings.append(
                f"max_tokens was lowered from {request.max_tokens} to {room}: the prompt has "
                f"{self.prompt_tokens} tokens"
            )
        for name in ("stop", "stop_token_ids"):
            if form is not None and getattr(request, name):
                self.warnings.append(
                    f"{name} was left out: the form of the answer says where it ends"
                )
        return filled(
            Sampling,
            request,
            max_tokens=max_tokens,
            top_k=request.sampling_top_k,
            logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
            ignore_end=request.ignore_eos,
            stop_ids=[] if form is not None else request.stop_token_ids or [],
            grammar="" if form is None else form.grammar,
        )


@dataclass(frozen=True)
class RequestValidator:
    """Checks requests against settings, model and methods. Stateless."""

    worker: Worker
    retriever: AsyncRetriever
    prompts: PromptBuilder
    methods: DefaultMethods
    settings: Callable[[], Settings]

    def validate(self, request: GenerateRequest, call: CallContext) -> AnswerPlan:
        """Make every check that takes no time; raises as `AnswerService.open`."""
        request.check_fields()
        ready = self.worker.require()
        max_context, inline, sent = ready.model.max_context, request.inline_documents, request.turns
        chars = sum(turn.chars for turn in sent)
        chars += 0 if request.tools is None else len(request.tools.text)
        if chars > MAX_CHARS_PER_TOKEN * max_context or len(sent) > max_context:
            field = "question" if request.messages is None else "messages"
            raise PromptTooLong(
                f"{context_length(max_context)} and {field} has {chars} characters"
                f"{f' in {len(sent)} messages' if len(sent) > 1 else ''}: shorten it",
                field=field,
            )
        self.retriever.require()
        adapter = chosen_adapter(request.adapter, call.principal, ready)
        fusion, eviction = self.methods.chosen(request, ready)
        turns = normalize_turns(sent, continues=request.continue_final_message)
        searched_for, warnings = question_of(turns), list[str]()
        if len(searched_for) > (limit := self.settings().max_question_chars):
            searched_for = searched_for[-limit:]
            warnings = [f"documents are searched for the last {limit} characters of the question"]
        query = search_query(
            request,
            searched_for,
            principal=call.principal,
            top_k=self.prompts.format.top_k,
            settings=self.settings(),
        )
        unanswerable = request.unanswerable or self.settings().unanswerable
        inline_chars = 0 if inline is None else sum(len(document.text) for document in inline)
        may_talk = inline is None and request.documents is None and unanswerable != "answer"
        talk = may_talk and is_small_talk(searched_for)
        searched = query.top_k if inline is None and not talk else 0
        return AnswerPlan(
            request=request,
            scope=query.scope,
            turns=turns,
            search=query if searched else None,
            fusion=fusion,
            eviction=eviction,
            adapter=adapter,
            condense=request.condense or self.settings().condense,
            unanswerable=unanswerable,
            begins=request.guided is None and not talk,
            max_context=max_context,
            estimated_tokens=self.prompts.estimate(chars, searched, inline_chars),
            warnings=warnings if searched else [],
        )
