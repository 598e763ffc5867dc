"""Documents as chunks of at most so many tokens, as a store would hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Ids = tuple[int, ...]


def chunked(documents: Iterable[Sequence[int]], limit: int | None) -> tuple[Ids, ...]:
    """Chunks of at most `limit` tokens: long documents are cut, short neighbours share one.

    Documents that fit are never cut. Without a limit every document is a chunk.
    """
    if limit is None:
        return tuple(tuple(ids) for ids in documents)
    chunks: list[Ids] = []
    for ids in documents:
        if chunks and len(chunks[-1]) + len(ids) <= limit:
            chunks[-1] += tuple(ids)
        else:
            chunks += [tuple(ids[start : start + limit]) for start in range(0, len(ids), limit)]
    return tuple(chunks)
