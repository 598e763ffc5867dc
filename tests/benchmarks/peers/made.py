"""A corpus of short texts, and its encoding: a token per word."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.workloads import USUAL, Rounds, Source
from loadtest.traffic.routes import CorpusDocument
from service.prompt import Turn

SYSTEM = 1


def encode(turns: Sequence[Turn], documents: Sequence[CorpusDocument]) -> tuple[int, ...]:
    """S, a token per document, and a token per turn that depends on its text."""
    asked = (10_000 + sum(turn.text.encode()) for turn in turns)
    return (SYSTEM, *(100 + int(each.doc_id) for each in documents), *asked)


def sources(first: int, count: int) -> list[Source]:
    return [
        Source(CorpusDocument(str(n), f"title {n}", f"text {n}"), f"question {n}?", f"answer {n}")
        for n in range(first, first + count)
    ]


def rounds(
    corpus: int = 24,
    unseen: int = 60,
    count: int = 5,
    alpha: float = 1.0,
    *,
    workloads: Sequence[str] = USUAL,
    room: int | None = None,
) -> Rounds:
    return Rounds(
        sources(0, corpus), sources(corpus, unseen), count, encode, alpha, "They say,",
        workloads=workloads, room=room,
    )  # fmt: skip
