"""Combines the rankings by meaning and by words.

Each passage has a score in both, from 0 to 1, and the sum of these by weights ranks it:

    by meaning   its cosine above that of the last candidate, of the spread of all candidates
    by words     its BM25, of what a passage of nothing but the query's words has

So a ranking counts for as much as it tells passages apart. Where all are about as near, as rows of
one table are, words decide; where they hold few of the query's words, as in another language,
meaning does; a misspelt word counts as what was found for it. Ranks would count the first of either
for the same. How many are combined does not depend on how many are wanted: the first stay the same.

Passages that hold an identifier of the query, or what is in quotation marks there, come before all
others, as if they were first in both rankings: meaning tells PPR-9087 from PPR-9086 no better than
by chance. What fewer passages hold counts for more.

Source:
    Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", 2023.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple, get_args

from kvstitch.retriever.documents import SearchMode
from kvstitch.retriever.errors import InvalidQuery

CANDIDATES = 256  # of each ranking, that are combined
MEANING = 0.4  # weight of a passage's score by meaning; words have the rest
LEAST_SPREAD = 0.3  # of cosines, that tells passages apart: less may be chance
MOST_OF_A_WORD = 2.2  # times its idf: what BM25 gives for it at most, K1 + 1

Hits = Sequence[tuple[int, float]]  # (chunk_id, score), best first


class FusedHit(NamedTuple):
    """One candidate, with (rank, score) in each ranking; of None where it was not found."""

    chunk_id: int
    score: float
    dense: tuple[int, float] | tuple[None, None] = (None, None)
    sparse: tuple[int, float] | tuple[None, None] = (None, None)
    exact: bool = False


def combine(dense: Hits | None, sparse: Hits | None, most: float = 0.0) -> list[FusedHit]:
    """Combine two rankings, or return the one there is; best first, ties by chunk_id. `most`: BM25
    of a passage of nothing but the query's words; 0: not known, so the best has it."""
    in_dense, in_sparse = _places(dense or ()), _places(sparse or ())
    scores = {chunk_id: score for chunk_id, score in dense or sparse or ()}
    if dense is not None and sparse is not None:
        cosines = [score for _, score in dense] or [0.0]
        spread = max(LEAST_SPREAD, max(cosines) - min(cosines))
        most = most or max((score for _, score in sparse), default=1.0)
        scores = {i: MEANING * (score - min(cosines)) / spread for i, score in dense}
        for i, score in sparse:
            scores[i] = scores.get(i, 0.0) + (1 - MEANING) * min(1.0, score / most)
    nowhere = None, None
    return [
        FusedHit(i, score, in_dense.get(i, nowhere), in_sparse.get(i, nowhere))
        for i, score in sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    ]


def exact_first(
    hits: Sequence[FusedHit], exact: Sequence[Collection[int]], most: int
) -> list[FusedHit]:
    """Put chunks first that hold what is to be held exactly; they score as the best hit does."""
    weights: defaultdict[int, float] = defaultdict(float)
    for chunk_ids in exact:
        for chunk_id in chunk_ids:
            weights[chunk_id] += 1 / len(chunk_ids)
    if not weights:
        return list(hits)
    known = {hit.chunk_id for hit in hits}
    added = sorted(weights.keys() - known, key=lambda chunk_id: (-weights[chunk_id], chunk_id))
    all_hits = [*hits, *(FusedHit(chunk_id, 0.0) for chunk_id in added[:most])]
    best = max((hit.score for hit in hits), default=0.0)
    return sorted(
        (hit._replace(score=best, exact=True) if hit.chunk_id in weights else hit
         for hit in sorted(all_hits, key=lambda hit: (-hit.score, hit.chunk_id))),
        key=lambda hit: -weights.get(hit.chunk_id, 0.0),
    )  # fmt: skip


def _places(hits: Hits) -> dict[int, tuple[int, float]]:
    return {chunk_id: (rank, score) for rank, (chunk_id, score) in enumerate(hits, start=1)}


def check_query(query: str, top_k: int = 1, mode: SearchMode = "dense") -> None:
    """Raise InvalidQuery if a query cannot be searched as given."""
    if not query.strip():
        raise InvalidQuery("the query is empty")
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise InvalidQuery(
            f"the query holds a lone surrogate at character {error.start}; send valid Unicode"
        ) from error
    if top_k < 1:
        raise InvalidQuery(f"top_k must be at least 1, not {top_k}")
    if mode not in get_args(SearchMode):
        modes = ", ".join(get_args(SearchMode))
        raise InvalidQuery(f"mode must be one of {modes}, not {mode!r}")
