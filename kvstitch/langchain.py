"""LangChain: a retriever and embeddings that ask a kvstitch service (extra `langchain`)."""

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from pydantic import SecretStr

from kvstitch.client import AsyncClient, Client, SearchResult
from kvstitch.client.options import Retrieval, SearchOptions

# In one call; the service has limits on a call's texts and characters.
BATCH_TEXTS = 128
# What a document's metadata say of the passage, besides those of the stored document.
OWN = ("doc_id", "chunk_id", "title", "char_start", "char_end", "score", "heading", "page")


class KvstitchRetriever(BaseRetriever):
    """Passages of the documents that a service has stored.

    `invoke(query, k=…, filter=…)` goes before what is set here. A passage's metadata are those of
    the stored document, and `kvstitch_doc_id`, `kvstitch_score` and so on: what the service says of
    the passage.

    Attributes:
        base_url: URL of the service; None: KVSTITCH_URL, else http://localhost:8000.
        api_key: None: KVSTITCH_API_KEY, else none is sent.
        k: Passages wanted; None: the service's default.
        collection: Where to search; None: `default`.
        retrieval: dense, sparse or hybrid; None: the service's default.
        filter: Only documents whose metadata passes (docs/retrieval.md).
        rerank: Ask the service's reranker.
        min_score: Leave out passages whose score is lower.
    """

    base_url: str | None = None
    api_key: SecretStr | None = None
    k: int | None = None
    collection: str | None = None
    retrieval: Retrieval | None = None
    filter: dict[str, Any] | None = None
    rerank: bool = False
    min_score: float | None = None

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Document]:
        with Client(self.base_url, api_key=_text(self.api_key)) as client:
            found = client.search(query, **self._options(k, filter))
        return [_document(result) for result in found.results]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Document]:
        async with AsyncClient(self.base_url, api_key=_text(self.api_key)) as client:
            found = await client.search(query, **self._options(k, filter))
        return [_document(result) for result in found.results]

    def _options(self, k: int | None, where: dict[str, Any] | None) -> SearchOptions:
        return {
            "collection": self.collection,
            "top_k": self.k if k is None else k,
            "retrieval": self.retrieval,
            "filter": self.filter if where is None else where,
            "rerank": self.rerank,
            "min_score": self.min_score,
        }


class KvstitchEmbeddings(Embeddings):
    """Vectors by the service's embedder, which the stored documents are searched by."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: SecretStr | str | None = None,
        model: str | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            base_url: URL of the service; None: KVSTITCH_URL, else http://localhost:8000.
            api_key: None: KVSTITCH_API_KEY, else none is sent.
            model: The embedder's name, to be sure that it is this one; None: whichever it is.
        """
        self._base_url = base_url
        self._api_key = api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key
        self._model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        with Client(self._base_url, api_key=self._api_key) as client:
            for batch in _batches(texts):
                vectors += client.embeddings(batch, model=self._model).vectors
        return vectors

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def _document(result: SearchResult) -> Document:
    own = {f"kvstitch_{name}": getattr(result, name) for name in OWN}
    metadata = {**result.metadata, **own}
    return Document(page_content=result.text or "", metadata=metadata, id=str(result.chunk_id))


def _batches(texts: list[str]) -> list[list[str]]:
    return [texts[start : start + BATCH_TEXTS] for start in range(0, len(texts), BATCH_TEXTS)]


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
