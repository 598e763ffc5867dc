"""The tools that agents call, defined once: names, arguments, scopes, and what they do.

They ask the services that the routes ask: `search` what POST /v1/search asks, `ask` what
POST /v1/rag/generate asks, `documents` what GET /admin/documents asks. This knows nothing of the
protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel

from retriever import DocFilter, DocumentInfo
from service.gateway.admission import CallContext
from service.gateway.composition import Gateway
from service.gateway.json_content import validated
from service.gateway.schemas.fields import composed
from service.gateway.schemas.generate import GenerateRequest
from service.gateway.schemas.mcp_tools import (
    AskArguments,
    CitedAnswer,
    DocumentPart,
    Documents,
    DocumentsArguments,
    FoundPassages,
    ListedDocument,
    Passage,
    SearchArguments,
)
from service.gateway.schemas.search import SearchRequest
from service.gateway.search.search_query import document_scope, metadata_filter

A = TypeVar("A", bound=BaseModel)
INSTRUCTIONS: Final = (
    "Documents of this organisation. `ask` answers a question from them and cites the passages; "
    "`search` gives passages to read for yourself; `documents` lists them and gives their text."
)


@dataclass(frozen=True)
class Tool(Generic[A]):
    """One tool."""

    name: str
    description: str
    scope: str
    counted: bool
    arguments: type[A]
    result: type[BaseModel]
    answer: Callable[[Gateway, A, CallContext], Awaitable[BaseModel]]

    async def call(self, gateway: Gateway, arguments: Any, call: CallContext) -> BaseModel:
        """Do what was asked for."""
        await gateway.access.admit(call.principal, self.scope, counted=self.counted)
        return await self.answer(gateway, validated(arguments, self.arguments), call)


async def _search(gateway: Gateway, given: SearchArguments, call: CallContext) -> FoundPassages:
    found = await gateway.searches.search(SearchRequest(**dict(given)), call)
    return FoundPassages(
        passages=[Passage.of(each) for each in found.results],
        ranked_by=found.ranked_by,
        warnings=found.warnings,
    )


async def _ask(gateway: Gateway, given: AskArguments, call: CallContext) -> CitedAnswer:
    request = GenerateRequest(**dict(given), include_text=True, cite="marks")
    group = await gateway.answers.open([request], call)
    [result] = await group.collect()
    return CitedAnswer(
        answer=result.text,
        citations=[Passage.of(each) for each in result.citations],
        finish_reason=result.finish_reason,
        warnings=result.warnings,
    )


async def _documents(gateway: Gateway, given: DocumentsArguments, call: CallContext) -> Documents:
    service = gateway.corpus.documents
    scope = document_scope(call.principal, given.collection)
    if given.doc_id is None:
        where = DocFilter(where=metadata_filter(given.filter), named=composed(given.named))
        page = await service.page(scope, given.limit, given.cursor, where)
        return Documents(
            documents=[ListedDocument(**_listed(each)) for each in page.documents],
            next_cursor=page.next_cursor,
        )
    stored = await service.get(scope, given.doc_id)
    text = stored.document.text
    end = given.offset + given.max_chars
    return Documents(
        document=DocumentPart(
            **_listed(stored.info),
            text=text[given.offset : end],
            offset=given.offset,
            next_offset=end if end < len(text) else None,
        )
    )


def _listed(info: DocumentInfo) -> dict[str, Any]:
    return {
        "doc_id": info.doc_id,
        "title": info.title,
        "chars": info.num_chars,
        "metadata": dict(info.metadata),
    }


TOOLS: Final[dict[str, Tool[Any]]] = {
    tool.name: tool
    for tool in (
        Tool(
            "search",
            "Find the passages of the documents that are closest to a query, best first, with "
            "document, page and score.",
            "generate",
            True,
            SearchArguments,
            FoundPassages,
            _search,
        ),
        Tool(
            "ask",
            "Answer a question from the documents. The answer cites the passages that it rests on.",
            "generate",
            True,
            AskArguments,
            CitedAnswer,
            _ask,
        ),
        Tool(
            "documents",
            "List the documents that are stored, or give the text of one of them by its doc_id.",
            "admin",
            False,
            DocumentsArguments,
            Documents,
            _documents,
        ),
    )
}
