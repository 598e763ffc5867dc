"""A fake reranker: the score is the share of the query's words that a text contains."""

from __future__ import annotations

import re
from collections.abc import Sequence


class OverlapReranker:
    """Deterministic; needs no model and no network."""

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        wanted = _words(query)
        return [len(wanted & _words(text)) / max(1, len(wanted)) for text in texts]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
