"""Finds the passages that an answer is given: searched for, or those that came with the request."""

from __future__ import annotations

from collections.abc import Sequence

from retriever import Passage
from service.errors import PromptTooLong
from service.gateway.answers.condensing.condenser import Condensed, QueryCondenser
from service.gateway.answers.condensing.rewriting import QuestionRewriter
from service.gateway.answers.preparing.inline_documents import inline_passages
from service.gateway.answers.validating.validation import ValidatedRequest
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever, RetrievalResult
from service.gateway.retrieval.passage_search import PassageSearch
from service.gateway.schemas.answer import RetrievalNote
from service.gateway.schemas.generate import InlineDocument
from service.gateway.worker_client.protocol import Worker
from service.settings import Settings

# Inline documents with more characters per token of context than this cannot fit, and are refused
# before they are encoded.
MAX_INLINE_CHARS_PER_TOKEN = 32


class PassageFinder:
    """Stateless. What is no coroutine blocks: call it within `run_blocking`."""

    def __init__(
        self,
        worker: Worker,
        retriever: AsyncRetriever,
        prompts: PromptBuilder,
        settings: Settings,
    ) -> None:
        self._retriever = retriever
        self._prompts = prompts
        self._passages = PassageSearch(retriever, settings)
        self._condenser = QueryCondenser(self._passages, QuestionRewriter(worker, prompts))

    async def condense(self, validated: ValidatedRequest) -> Condensed | None:
        """What is searched for; None: nothing."""
        if validated.search is None:
            return None
        return await self._condenser.condense(validated, validated.search)

    def find(
        self, validated: ValidatedRequest, condensed: Condensed | None
    ) -> tuple[RetrievalResult, Condensed | None]:
        """The passages, the best first, and what was searched for in the end.

        Those that came with the request are in its order.

        Raises:
            NotFound: A named document is not stored.
            InvalidRequest: A reranker is asked for and the service has none.
            PromptTooLong: The request's documents are too long.
        """
        request = validated.request
        if request.inline_documents is not None:
            found = self._inline_passages(request.inline_documents, validated.max_context)
            return RetrievalResult(found), None
        if condensed is not None:
            return self._condenser.find(condensed)
        if request.documents is not None:
            self._passages.require_documents(request.documents, validated.scope)
        return RetrievalResult([]), None

    async def rerank(self, condensed: Condensed, found: RetrievalResult) -> RetrievalResult:
        return await self._retriever.rerank(condensed.reranked, found)

    def why_nothing(
        self, validated: ValidatedRequest, condensed: Condensed, found: RetrievalResult
    ) -> str:
        """Why a search has no passages."""
        return self._passages.why_nothing(validated.request, condensed.search, found)

    def urls(self, passages: Sequence[Passage], validated: ValidatedRequest) -> dict[str, str]:
        """By doc_id, of the stored documents whose metadata have one."""
        if validated.search is None:
            return {}
        doc_ids = {passage.chunk.doc_id for passage in passages}
        infos = self._retriever.document_infos(doc_ids, validated.scope)
        urls = {doc_id: info.metadata.get("url") for doc_id, info in infos.items()}
        return {doc_id: url for doc_id, url in urls.items() if isinstance(url, str) and url}

    def _inline_passages(
        self, documents: Sequence[InlineDocument], max_context: int
    ) -> list[Passage]:
        chars = sum(len(document.text) for document in documents)
        if chars > MAX_INLINE_CHARS_PER_TOKEN * max_context:
            raise PromptTooLong(
                f"inline_documents have {chars} characters, the model takes {max_context} tokens: "
                "send less text",
                field="inline_documents",
            )
        return inline_passages(documents, self._prompts.chunking())


def retrieval_note(condensed: Condensed | None) -> RetrievalNote | None:
    """What was searched for, as the client gets it."""
    if condensed is None:
        return None
    return RetrievalNote(
        query=condensed.search.text, joined=condensed.joined, condense=condensed.how
    )
