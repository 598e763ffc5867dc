"""Decides whether a request can be answered, before any work is done for it."""

from __future__ import annotations

from service.errors import InvalidRequest
from service.gateway.admission import CallContext
from service.gateway.answers.answer_plan import AnswerPlan
from service.gateway.answers.methods import DefaultMethods, chosen_adapter
from service.gateway.prompts.conversation import normalize_turns, question_of
from service.gateway.prompts.prompt_builder import PromptBuilder
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

    def validate(self, request: GenerateRequest, call: CallContext) -> AnswerPlan:
        """Make every check that takes no time.

        Raises:
            InvalidRequest: A field is wrong; the error names it.
            BoundToAdapter: The API key is bound to another adapter.
            NotCalibrated: The service is to choose a method, and nothing was measured.
            WorkerUnavailable: The worker or the index is not ready.
        """
        self._check_question(request)
        _check_marks(request)
        if (inline := request.inline_documents) is not None:
            _refuse_search_fields(request)
        turns = normalize_turns(request.turns)
        query = search_query(
            request,
            question_of(turns),
            tenant=call.principal.tenant,
            top_k=self._prompts.format.top_k,
            settings=self._settings,
        )
        ready = self._worker.require()
        self._retriever.require()
        adapter = chosen_adapter(request.adapter, call.principal, ready)
        fusion, eviction = self._methods.chosen(request, ready)
        chars = 0 if inline is None else sum(len(document.text) for document in inline)
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
            max_context=ready.model.max_context,
            estimated_tokens=self._prompts.estimate(turns, request.tools, searched, chars),
        )

    def _check_question(self, request: GenerateRequest) -> None:
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
        chars = sum(turn.chars for turn in request.turns)
        chars += 0 if request.tools is None else len(request.tools.text)
        if chars > (limit := self._settings.max_question_chars):
            raise InvalidRequest(
                f"{field} has {chars} characters, the limit is {limit}: shorten it", field=field
            )


def _check_marks(request: GenerateRequest) -> None:
    """Marks that are put into the finished text would differ from what was sent or counted."""
    for name, asked in (("stream", request.stream), ("logprobs", request.logprobs is not None)):
        if request.cite == "marks" and asked:
            raise InvalidRequest(
                f"cite: marks are put into whole answers without {name}: leave {name} out, or "
                "read `attributions`",
                field="cite",
            )


def _refuse_search_fields(request: GenerateRequest) -> None:
    for name in _SEARCH_FIELDS:
        if getattr(request, name) not in (None, False):
            raise InvalidRequest(
                f"{name} chooses among stored documents, and inline_documents are used instead of "
                "these: leave one of the two out",
                field=name,
            )
