"""Decides whether a request can be answered, before any work is done for it."""

from __future__ import annotations

from service.errors import InvalidRequest, PromptTooLong
from service.gateway.admission import CallContext
from service.gateway.answers.answer_plan import AnswerPlan
from service.gateway.answers.methods import DefaultMethods, chosen_adapter
from service.gateway.prompts.conversation import normalize_turns, question_of
from service.gateway.prompts.prompt_builder import (
    MAX_CHARS_PER_TOKEN,
    PromptBuilder,
    context_length,
)
from service.gateway.schemas.generate import GenerateRequest
from service.gateway.search.async_retriever import AsyncRetriever
from service.gateway.search.search_query import search_query
from service.gateway.worker_client.protocol import Worker
from service.settings import Settings

_SEARCH_FIELDS = (
    *("top_k", "documents", "collection", "filter", "retrieval", "rerank", "min_score", "condense"),
)


class RequestValidator:
    """Checks requests against settings, model and methods. Stateless."""

    def __init__(
        self,
        worker: Worker,
        retriever: AsyncRetriever,
        prompts: PromptBuilder,
        methods: DefaultMethods,
        settings: Settings,
    ) -> None:
        self._worker = worker
        self._retriever = retriever
        self._prompts = prompts
        self._methods = methods
        self._settings = settings

    def adopt(self, settings: Settings) -> None:
        """Look at other settings from now on."""
        self._settings = settings

    def validate(self, request: GenerateRequest, call: CallContext) -> AnswerPlan:
        """Make every check that takes no time.

        Raises:
            InvalidRequest: A field is wrong; the error names it.
            BoundToAdapter: The API key is bound to another adapter.
            NotCalibrated: The service is to choose a method, and nothing was measured.
            WorkerUnavailable: The worker or the index is not ready.
        """
        _check_fields(request)
        ready = self._worker.require()
        max_context, inline = ready.model.max_context, request.inline_documents
        chars = sum(turn.chars for turn in request.turns)
        chars += 0 if request.tools is None else len(request.tools.text)
        if chars > MAX_CHARS_PER_TOKEN * max_context or len(request.turns) > max_context:
            raise _too_long(request, chars, max_context)
        turns = normalize_turns(request.turns, continues=request.continue_final_message)
        searched_for, warnings = question_of(turns), list[str]()
        if len(searched_for) > (limit := self._settings.max_question_chars):
            searched_for = searched_for[-limit:]
            warnings = [f"documents are searched for the last {limit} characters of the question"]
        query = search_query(
            request,
            searched_for,
            principal=call.principal,
            top_k=self._prompts.format.top_k,
            settings=self._settings,
        )
        self._retriever.require()
        adapter = chosen_adapter(request.adapter, call.principal, ready)
        fusion, eviction = self._methods.chosen(request, ready)
        inline_chars = 0 if inline is None else sum(len(document.text) for document in inline)
        searched = query.top_k if inline is None else 0
        return AnswerPlan(
            request=request,
            scope=query.scope,
            turns=turns,
            search=query if searched else None,
            fusion=fusion,
            eviction=eviction,
            adapter=adapter,
            condense=request.condense or self._settings.condense,
            max_context=max_context,
            estimated_tokens=self._prompts.estimate(chars, searched, inline_chars),
            warnings=warnings if searched else [],
        )


def _check_fields(request: GenerateRequest) -> None:
    """Raise InvalidRequest for fields that do not go together."""
    if (request.question is None) == (request.messages is None):
        raise InvalidRequest(
            "send either question or messages"
            if request.question is not None
            else "question is missing: send it, or messages",
            field="question",
        )
    if request.question is not None and not request.question.strip():
        raise InvalidRequest("question is empty: send the question's text", field="question")
    # Marks that are put into the finished text would differ from what was sent or counted.
    for name, asked in (("stream", request.stream), ("logprobs", request.logprobs is not None)):
        if request.cite == "marks" and asked:
            raise InvalidRequest(
                f"cite: marks are put into whole answers without {name}: leave {name} out, or "
                "read `attributions`",
                field="cite",
            )
    for name in _SEARCH_FIELDS if request.inline_documents is not None else ():
        if getattr(request, name) not in (None, False):
            raise InvalidRequest(
                f"{name} chooses among stored documents, and inline_documents are used instead of "
                "these: leave one of the two out",
                field=name,
            )


def _too_long(request: GenerateRequest, chars: int, max_context: int) -> PromptTooLong:
    """Return the error for a conversation that cannot fit, before anything is written."""
    turns, field = len(request.turns), "question" if request.messages is None else "messages"
    return PromptTooLong(
        f"{context_length(max_context)} and {field} has {chars} characters"
        f"{f' in {turns} messages' if turns > 1 else ''}: shorten it",
        field=field,
    )
