"""Decides whether a request can be answered, before any work is done for it."""

from __future__ import annotations

from service.errors import InvalidRequest
from service.gateway.admission import CallContext
from service.gateway.answers.answer_plan import AnswerPlan
from service.gateway.answers.default_methods import DefaultMethods
from service.gateway.answers.methods import check_combination, chosen_adapter, chosen_method
from service.gateway.prompts.conversation import normalize_turns, question_of
from service.gateway.prompts.prompt_builder import CHARS_PER_TOKEN_ESTIMATE, PromptBuilder
from service.gateway.schemas.generate import GenerateRequest
from service.gateway.search.async_retriever import AsyncRetriever
from service.gateway.search.passage_search import PassageSearch, SearchQuery
from service.gateway.worker_client.protocol import Worker
from service.messages.replies import Ready
from service.messages.requests import Method
from service.prompt import Turn
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
        settings: Settings,
        defaults: DefaultMethods,
    ) -> None:
        self._worker = worker
        self._retriever = retriever
        self._passages = PassageSearch(retriever, settings)
        self._prompts = prompts
        self._settings = settings
        self._defaults = defaults

    def validate(self, request: GenerateRequest, call: CallContext) -> AnswerPlan:
        """Make every check that takes no time.

        Raises:
            InvalidRequest: A field is wrong; the error names it.
            BoundToAdapter: The API key is bound to another adapter.
            NotCalibrated: The service is to choose a method, and nothing was measured.
            WorkerUnavailable: The worker or the index is not ready.
        """
        turns = self._turns(request)
        _check_marks(request)
        query = self._query(request, question_of(turns), call.principal.tenant)
        ready = self._worker.require()
        self._retriever.require()
        fusion, eviction = self._methods(request, ready)
        searches = query.top_k > 0 and request.inline_documents is None
        return AnswerPlan(
            request=request,
            scope=query.scope,
            turns=turns,
            search=query if searches else None,
            fusion=fusion,
            eviction=eviction,
            adapter=chosen_adapter(request.adapter, call.principal, ready),
            condense=request.condense or self._settings.condense,
            max_context=ready.model.max_context,
            estimated_tokens=self._estimated_tokens(request, turns, query.top_k),
        )

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
        chars = sum(turn.chars for turn in request.turns)
        chars += 0 if request.tools is None else len(request.tools.text)
        if chars > (limit := self._settings.max_question_chars):
            raise InvalidRequest(
                f"{field} has {chars} characters, the limit is {limit}: shorten it", field=field
            )
        return normalize_turns(request.turns)

    def _query(self, request: GenerateRequest, text: str, tenant: str) -> SearchQuery:
        if request.inline_documents is not None:
            _refuse_search_fields(request)
        top_k = self._prompts.format.top_k
        return self._passages.query(request, text, tenant=tenant, top_k=top_k)

    def _methods(self, request: GenerateRequest, ready: Ready) -> tuple[Method, Method | None]:
        if request.profile is not None:
            _refuse_methods_beside_profile(request)
            choice = self._defaults.of_profile(request.profile, ready.fusion)
        else:
            choice = self._defaults.choice(
                request.fusion, codec=ready.model.codec, offered=ready.fusion
            )
        fusion = chosen_method("fusion", choice, ready.fusion)
        eviction = None
        if request.eviction is not None:
            eviction = chosen_method("eviction", request.eviction, ready.eviction)
        check_combination(fusion, eviction, ready.fusion)
        return fusion, eviction

    def _estimated_tokens(self, request: GenerateRequest, turns: list[Turn], top_k: int) -> int:
        if request.inline_documents is None:
            return self._prompts.estimate(turns, top_k, request.tools)
        chars = sum(len(document.text) for document in request.inline_documents)
        return self._prompts.estimate(turns, 0, request.tools) + chars // CHARS_PER_TOKEN_ESTIMATE


def _check_marks(request: GenerateRequest) -> None:
    """Marks that are put into the finished text would differ from what was sent or counted."""
    for name, asked in (("stream", request.stream), ("logprobs", request.logprobs is not None)):
        if request.cite == "marks" and asked:
            raise InvalidRequest(
                f"cite: marks are put into whole answers without {name}: leave {name} out, or "
                "read `attributions`",
                field="cite",
            )


def _refuse_methods_beside_profile(request: GenerateRequest) -> None:
    for name in ("fusion", "eviction"):
        if getattr(request, name) is not None:
            raise InvalidRequest(
                f"profile already chooses the methods: leave out {name}, or profile",
                field="profile",
            )


def _refuse_search_fields(request: GenerateRequest) -> None:
    for name in _SEARCH_FIELDS:
        if getattr(request, name) not in (None, False):
            raise InvalidRequest(
                f"{name} chooses among stored documents, and inline_documents are used instead of "
                "these: leave one of the two out",
                field=name,
            )
