"""The protocol of rerankers, and how one is used with a deadline.

Rerankers are asked over a network, so this code is async although the rest of the package blocks: a
deadline then cancels the request itself and blocks no thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from retriever.documents import Passage
from retriever.errors import RerankerError

_AS_FOUND = "; the passages are in the order of the search"


class Reranker(Protocol):
    """Scores texts for a query; any number of tasks of one event loop may use it."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the query; higher is better.

        Raises:
            RerankerError: it failed.
        """
        ...


@dataclass(frozen=True)
class Reranked:
    """The result of reranking.

    Attributes:
        passages: the passages, best first.
        warning: why the order is still that of the search; None if the passages were reranked.
    """

    passages: list[Passage]
    warning: str | None = None


async def rerank(
    reranker: Reranker, query: str, passages: Sequence[Passage], top_k: int, *, deadline_s: float
) -> Reranked:
    """Rerank passages and keep the best `top_k`.

    A reranker that fails or is late never raises here: the passages keep their order, and the
    result has a warning. The `score` of a reranked passage is that of the reranker; equal scores
    keep their order.

    Args:
        reranker: a started reranker.
        query: the user's query.
        passages: hits of a search, best first.
        top_k: how many to keep.
        deadline_s: longest wait for the reranker, in seconds.
    """
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
