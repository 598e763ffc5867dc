"""POST /v1/embeddings: texts become vectors, batch by batch, outside of the event loop."""

from __future__ import annotations

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from retriever import Embedder
from retriever.embedders.base import space_of
from retriever.errors import RetrieverError
from service.errors import InvalidRequest, ModelNotFound, Unsupported
from service.gateway.admission import CallContext, ConcurrencyLimiter, before_deadline
from service.gateway.schemas.search import EmbeddingsRequest
from service.gateway.search.async_retriever import AsyncRetriever
from service.gateway.search.document_scope import service_error
from service.gateway.search.text_calls import CallLimit, check_texts
from service.settings import Settings

# Texts embedded in one go. Between batches other calls get their turn, and a call is given up
# whose client has disconnected.
BATCH_TEXTS = 32


class EmbeddingService:
    """Embeds texts, on a thread of its own, which delays neither searches nor documents."""

    def __init__(
        self,
        embedder: Embedder,
        retriever: AsyncRetriever,
        limiter: ConcurrencyLimiter,
        settings: Settings,
    ) -> None:
        """`embedder`: the retriever's, which starts and closes it."""
        self._embedder = embedder
        self._retriever = retriever
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embed-texts")
        self._limit = CallLimit(limiter, "/v1/embeddings")
        self._settings = settings

    def close(self) -> None:
        """Drop what waits; what is being computed ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def embed(self, request: EmbeddingsRequest, call: CallContext) -> bytes:
        """Embed all inputs.

        Returns:
            The body of the response, an EmbeddingsResponse as JSON.

        Raises:
            InvalidRequest, Unsupported: A field is wrong; the error names it.
            ModelNotFound: The embedder has another name.
            Overloaded, QuotaExceeded: Too many requests are in flight.
            WorkerUnavailable: The index is being loaded.
            DeadlineExceeded: The deadline passed meanwhile.
        """
        texts = _texts(request)
        check_texts(texts, "input", self._settings)
        self._retriever.require()
        space = space_of(self._embedder)
        if request.model not in (None, space.name):
            raise ModelNotFound(
                f"the embedder here is {space.name!r}, not {request.model!r}", field="model"
            )
        if request.dimensions not in (None, space.dim):
            raise Unsupported(
                f"dimensions: the vectors of {space.name} have {space.dim}, and cannot be "
                "shortened: leave it out",
                field="dimensions",
            )
        with self._limit.place(call.principal.key_id):
            vectors, tokens = await before_deadline(self._vectors(texts), call)
        call.principal.spend_tokens(tokens)
        return await asyncio.to_thread(
            _body, vectors, tokens, space.name, as_base64=request.encoding_format == "base64"
        )

    async def _vectors(self, texts: list[str]) -> tuple[npt.NDArray[np.float32], int]:
        """`[len(texts), dim]`, and how many tokens the texts have."""
        parts, tokens = [], 0
        loop = asyncio.get_running_loop()
        for start in range(0, len(texts), BATCH_TEXTS):
            batch = texts[start : start + BATCH_TEXTS]
            try:
                done = await loop.run_in_executor(self._thread, self._embedder.embed_counted, batch)
            except RetrieverError as error:
                raise service_error(error) from error
            parts.append(done.vectors)
            tokens += done.tokens
        return np.concatenate(parts), tokens


def _texts(request: EmbeddingsRequest) -> list[str]:
    given = [request.input] if isinstance(request.input, str) else request.input
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) < len(given):
        raise Unsupported(
            "input must be text: token ids are those of a tokenizer that is not the embedder's "
            "(LangChain's OpenAIEmbeddings sends text with check_embedding_ctx_length=False)",
            field="input",
        )
    if not texts:
        raise InvalidRequest("input is empty: send a text, or a list of texts", field="input")
    return texts


def _body(vectors: npt.NDArray[np.float32], tokens: int, model: str, *, as_base64: bool) -> bytes:
    """Written here: as models of pydantic a million numbers would take seconds."""
    rows: list[Any]
    if as_base64:
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    else:
        rows = vectors.tolist()
    data = [
        {"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": data, "model": model, "usage": usage}).encode()
