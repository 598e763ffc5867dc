"""Rerankers: the protocol, how one is used with a deadline, and a cross-encoder behind HTTP.

Rerankers are asked over a network, so this code is async although the rest of the package blocks: a
deadline then cancels the request itself and blocks no thread. Endpoints speak one of two styles:

    tei      POST {"query", "texts"}               ->  [{"index", "score"}]
    cohere   POST {"model", "query", "documents"}  ->  {"results": [{"index", "relevance_score"}]}

The first is the style of text-embeddings-inference, the second that of Cohere, Jina and vLLM.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import httpx

from kvstitch.retriever.documents import Passage
from kvstitch.retriever.errors import RerankerError, RerankerUnsupported

_AS_FOUND = "; the passages are in the order of the search"


class Reranker(Protocol):
    """Scores texts for a query; any number of tasks of one event loop may use it."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the query; higher is better."""
        ...


@dataclass(frozen=True)
class Reranked:
    passages: list[Passage]
    warning: str | None = None


async def rerank(
    reranker: Reranker, query: str, passages: Sequence[Passage], top_k: int, *, deadline_s: float
) -> Reranked:
    """Rerank passages and keep the best `top_k`."""
    if not passages:
        return Reranked([])
    texts = [_text(passage) for passage in passages]
    try:
        async with asyncio.timeout(deadline_s):
            scores = await reranker.scores(query, texts)
        if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
            raise RerankerError(f"{len(texts)} texts got {len(scores)} scores, or not all finite")
    except TimeoutError:
        warning = f"rerank: no answer within {deadline_s:g} s{_AS_FOUND}"
        return Reranked(list(passages[:top_k]), warning)
    except RerankerError as error:
        return Reranked(list(passages[:top_k]), f"rerank: {error}{_AS_FOUND}")
    scored = [
        replace(passage, score=score, rerank_score=score)
        for passage, score in zip(passages, scores, strict=True)
    ]
    return Reranked(sorted(scored, key=lambda passage: -passage.score)[:top_k])


def _text(passage: Passage) -> str:
    """The text with its title, as it was embedded: without it a chunk may not name its topic."""
    title = f"{passage.chunk.title}\n" if passage.chunk.title else ""
    return title + passage.chunk.text


Style = Literal["tei", "cohere"]
STYLES: tuple[str, ...] = get_args(Style)

# text-embeddings-inference refuses larger batches by default.
_BATCH = 32
_SHOWN_CHARS = 200


class EndpointReranker:
    def __init__(
        self,
        url: str,
        *,
        style: Style = "tei",
        model: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if style not in STYLES:
            raise RerankerUnsupported(f"style must be one of {', '.join(STYLES)}, not {style!r}")
        self._url = url
        self._style = style
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    async def start(self) -> None:
        # No timeout here: the caller sets the deadline.
        self._http = self._http or httpx.AsyncClient(
            headers=self._headers, timeout=None, transport=self._transport
        )

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        failed: RerankerError | None = None
        batches = [texts[i : i + _BATCH] for i in range(0, len(texts), _BATCH)]
        try:
            async with asyncio.TaskGroup() as group:  # one failure cancels the others
                tasks = [group.create_task(self._scores(query, batch)) for batch in batches]
        except* RerankerError as errors:
            failed = next(e for e in errors.exceptions if isinstance(e, RerankerError))
        if failed is not None:  # raised here: inside, Python up to 3.11.3 puts it into a group
            raise failed
        return [score for task in tasks for score in task.result()]

    async def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        if self._http is None:
            raise RerankerError("call start() before the reranker is used")
        try:
            reply = await self._http.post(self._url, json=self._body(query, texts))
            if reply.status_code != 200:
                raise RerankerError(f"HTTP {reply.status_code}: {reply.text[:_SHOWN_CHARS]}")
            return _read(reply.json(), len(texts))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RerankerError(f"{type(error).__name__}: {error}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RerankerError(f"its answer cannot be read: {error}") from error

    def _body(self, query: str, texts: Sequence[str]) -> dict[str, Any]:
        if self._style == "tei":
            return {"query": query, "texts": list(texts), "truncate": True}
        model = {} if self._model is None else {"model": self._model}
        return {**model, "query": query, "documents": list(texts), "top_n": len(texts)}


def _read(answer: Any, count: int) -> list[float]:
    rows = answer if isinstance(answer, list) else answer["results"]
    scores: dict[int, float] = {}
    for row in rows:
        scores[int(row["index"])] = float(row["score" if "score" in row else "relevance_score"])
    if len(rows) != count or scores.keys() != set(range(count)):
        raise ValueError(f"{count} texts were sent, {len(rows)} rows came back")
    return [scores[index] for index in range(count)]
