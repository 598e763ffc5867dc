"""Searches for a follow-up question together with what was asked before it.

"What is its height?" finds little by itself, and together with the question before it finds mostly
what that one found. So both are searched, and their rankings fused by reciprocal ranks: what either
puts first is among the first. But not if the question's own best passage is as near to it as the
joined question's is: then it says by itself what it is about, and perhaps the conversation has come
to something else. (docs/citations.md has the figures.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from retriever import Passage
from retriever.search import K
from service.prompt import Turn

EARLIER_QUESTIONS = 3
QUESTION_CHARS = 400
"""Of each earlier question; of a longer one the beginning."""


def joined_query(turns: Sequence[Turn], question: str | None = None) -> str | None:
    """Join the question with the user's earlier ones, which follow it, the latest first.

    Args:
        turns: A normalised conversation.
        question: The part of the user's last text that is searched for; None: all of it.

    Returns:
        None: nothing was asked before.
    """
    asked = [turn.text for turn in reversed(turns) if turn.role == "user" and turn.text.strip()]
    if len(asked) < 2:
        return None
    earlier = (text[:QUESTION_CHARS] for text in asked[1 : 1 + EARLIER_QUESTIONS])
    return " ".join([asked[0] if question is None else question, *earlier])


def adds_something(own: Sequence[Passage], joined: Sequence[Passage]) -> bool:
    """Return whether the joined question is nearer to what it finds than the question alone."""
    if not any(passage.dense_score is not None for passage in (*own, *joined)):
        return True
    return _nearest(joined) > _nearest(own)


def _nearest(passages: Sequence[Passage]) -> float:
    return max((p.dense_score for p in passages if p.dense_score is not None), default=-1.0)


def fuse(own: Sequence[Passage], joined: Sequence[Passage]) -> list[Passage]:
    """Return the passages of two searches, best first; of equals that of the question alone."""
    scores: defaultdict[int, float] = defaultdict(float)
    for passages in (own, joined):
        for rank, passage in enumerate(passages, 1):
            scores[passage.chunk.chunk_id] += 1 / (K + rank)
    found = {passage.chunk.chunk_id: passage for passage in (*joined, *own)}
    # What the question names exactly stays first. Sorting keeps the order of equals, in which
    # `scores` was filled.
    exact = {passage.chunk.chunk_id for passage in own if passage.exact}
    best_first = sorted(scores, key=lambda chunk_id: (chunk_id not in exact, -scores[chunk_id]))
    return [replace(found[chunk_id], score=scores[chunk_id]) for chunk_id in best_first]
