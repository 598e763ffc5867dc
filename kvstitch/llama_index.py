"""LlamaIndex: a retriever that asks a kvstitch service (extra `llamaindex`)."""

from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from kvstitch.client import AsyncClient, Client, SearchResult
from kvstitch.client.options import Retrieval, SearchOptions


class KvstitchRetriever(BaseRetriever):
    """Passages of the documents that a service has stored.

    A node's metadata are those of the stored document, and `title`, `heading` and `page` where the
    service has them; its source is the document.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        top_k: int | None = None,
        collection: str | None = None,
        retrieval: Retrieval | None = None,
        filter: dict[str, Any] | None = None,
        rerank: bool = False,
        min_score: float | None = None,
        **more: Any,
    ) -> None:
        """Nothing is sent yet.

        Args:
            base_url: URL of the service; None: KVSTITCH_URL, else http://localhost:8000.
            api_key: None: KVSTITCH_API_KEY, else none is sent.
            top_k: Passages wanted; None: the service's default.
            collection: Where to search; None: `default`.
            retrieval: dense, sparse or hybrid; None: the service's default.
            filter: Only documents whose metadata passes (docs/retrieval.md).
            rerank: Ask the service's reranker.
            min_score: Leave out passages whose score is lower.
            **more: For LlamaIndex's BaseRetriever, e.g. callback_manager.
        """
        super().__init__(**more)
        self._base_url = base_url
        self._api_key = api_key
        self._options: SearchOptions = {
            "collection": collection,
            "top_k": top_k,
            "retrieval": retrieval,
            "filter": filter,
            "rerank": rerank,
            "min_score": min_score,
        }

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with Client(self._base_url, api_key=self._api_key) as client:
            found = client.search(query_bundle.query_str, **self._options)
        return [_node(result) for result in found.results]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        async with AsyncClient(self._base_url, api_key=self._api_key) as client:
            found = await client.search(query_bundle.query_str, **self._options)
        return [_node(result) for result in found.results]


def _node(result: SearchResult) -> NodeWithScore:
    known = {"title": result.title, "heading": result.heading, "page": result.page}
    node = TextNode(
        id_=str(result.chunk_id),
        text=result.text or "",
        metadata={**result.metadata, **{name: value for name, value in known.items() if value}},
        start_char_idx=result.char_start,
        end_char_idx=result.char_end,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=result.doc_id)},
    )
    return NodeWithScore(node=node, score=result.score)
