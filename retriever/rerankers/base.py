"""What a reranker is, and how one is used within a deadline. Knows no index, model or HTTP.

Rerankers are asked over a network, so that this is async where the rest of the package blocks: a
deadline then ends the request itself, and holds no thread.
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
    """Usable by any number of tasks of one event loop between start() and close()."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the query, higher is better. Raises RerankerError."""
        ...


@dataclass(frozen=True)
class Reranked:
    """`warning` says why the passages are as the search found them; None: they are reranked."""

    passages: list[Passage]
    warning: str | None = None


async def rerank(
    reranker: Reranker, query: str, passages: Sequence[Passage], top_k: int, *, deadline_s: float
) -> Reranked:
    """The best `top_k` of `passages` (best first), ties as they came. Never raises for a reranker
    that fails or is late: the order then stays, with a warning.

    A reranked passage's `score` is the reranker's.
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
    """As it was embedded: a chunk without its title is often about nobody."""
    title = f"{passage.chunk.title}\n" if passage.chunk.title else ""
    return title + passage.chunk.text
