"""Whether a request may be answered, before any work. Knows no passages and no prompt."""

from __future__ import annotations

from dataclasses import dataclass

from retriever import Filter, Scope, parse_filter
from retriever.errors import InvalidQuery
from service.errors import InvalidRequest
from service.gateway.answers.call_context import CallContext
from service.gateway.answers.method_choice import check_together, chosen
from service.gateway.prompts.conversation import normalize_turns
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.retrieval.document_scope import scope_of
from service.gateway.schemas import GenerateRequest
from service.gateway.worker_client.protocol import Worker
from service.messages import Method, Ready
from service.prompt import Turn
from service.settings import Settings


@dataclass(frozen=True)
class ValidatedRequest:
    """A request that may be answered. `turns` are normalised."""

    request: GenerateRequest
    call: CallContext
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


class RequestValidator:
    """Holds no state of its own."""

    def __init__(
        self, worker: Worker, retriever: AsyncRetriever, prompts: PromptBuilder, settings: Settings
    ) -> None:
        self._worker = worker
        self._retriever = retriever
        self._prompts = prompts
        self._settings = settings

    def check(self, request: GenerateRequest, call: CallContext) -> ValidatedRequest:
        """Everything that takes no time. Raises InvalidRequest, WorkerUnavailable."""
        turns = self._turns(request)
        top_k = self._top_k(request)
        scope = scope_of(call.principal, request.collection)
        where = _filter(request)
        ready = self._worker.require()
        self._retriever.require()
        fusion, eviction = self._methods(request, ready)
        return ValidatedRequest(request, call, scope, turns, top_k, where, fusion, eviction)

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
        return normalize_turns(request.turns)

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
