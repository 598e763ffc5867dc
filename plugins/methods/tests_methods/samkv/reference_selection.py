"""SamKV's queries per document, their P and the choice of middle blocks: Q2–Q5 of
specification.md §1.7 (paper, equations 1–3), on plain lists.

Sums run in double precision: a block's score is one number that a float32 implementation must come
near to, not a particular order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tests_methods.samkv.reference_sketch import Sketch

# A middle block: (number of the document among the non-empty ones, number of the block).
Block = tuple[int, int]


def cosine(a: Tensor, b: Tensor) -> float:
    """Of two tensors as flat vectors; 0 if one of them is zero."""
    a, b = a.double().flatten(), b.double().flatten()
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / norms if norms else 0.0


def personalised(question: Tensor, local_queries: Sequence[Tensor], i: int) -> Tensor:
    """Q̂_i (equation 1): the question's query `[heads, d]` plus the mean of the other documents'
    local queries, each weighted by |cosine| with the question's, one cosine over all heads."""
    others = [q for j, q in enumerate(local_queries) if j != i]
    out = question.double()
    if not others:
        return out
    bias = sum((abs(cosine(question, q)) * q.double() for q in others), start=0 * out)
    return out + bias / len(others)


def product(query: Tensor, key: Tensor) -> float:
    """s = Σ_h ⟨query[h], key[g(h)]⟩ of `[heads, d]` and `[kv_heads, d]`."""
    group = len(query) // len(key)
    return math.fsum(float(query[h].double() @ key[h // group].double()) for h in range(len(query)))


def proportion(maximum: float, anchor: float, minimum: float) -> float:
    """P of one layer (equation 2): in [0, 1), 0 unless minimum < anchor <= maximum."""
    if not minimum < anchor <= maximum:
        return 0.0
    return (maximum - anchor) / (maximum - minimum)


def layer_proportion(query: Tensor, sketch: Sketch) -> float:
    """Equation 2 for a document; 0 where no middle block is scored."""
    best, worst = sketch.most_important, sketch.least_important
    if best is None or worst is None:
        return 0.0
    return proportion(
        product(query, sketch.block_keys[best]),
        product(query, sketch.anchor),
        product(query, sketch.block_keys[worst]),
    )


def block_scores(query: Tensor, sketch: Sketch) -> dict[int, float]:
    """s of every middle block, by its mean key."""
    return {j: product(query, sketch.block_keys[j]) for j in sketch.middle}


def normalised(scores: dict[int, float], query: Tensor, how: str = "norm") -> dict[int, float]:
    """One document's scores, comparable with another's: divided by the norm of its query, or
    stretched to [0, 1] (all 0 if equal), or a softmax over its middle blocks."""
    if how == "norm":
        length = math.sqrt(float((query.double() ** 2).sum()))
        return {j: s / length if length else 0.0 for j, s in scores.items()}
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if how == "minmax":
        return {j: (s - low) / (high - low) if high > low else 0.0 for j, s in scores.items()}
    if how == "softmax":
        weights = {j: math.exp(s - high) for j, s in scores.items()}
        total = math.fsum(weights.values())
        return {j: w / total for j, w in weights.items()}
    raise ValueError(f"no normalisation {how!r}")


def wanted_blocks(proportions: Sequence[float], middles: Sequence[int]) -> list[int]:
    """k_i = ⌈P_i · |middle_i|⌉."""
    return [math.ceil(p * middle) for p, middle in zip(proportions, middles, strict=True)]


def pooled_blocks(wanted: Sequence[int], limit: int | None = None) -> int:
    """M = ⌈Σ k_i / documents⌉, at most `limit`."""
    if not wanted:
        return 0
    m = -(-sum(wanted) // len(wanted))
    return m if limit is None else min(m, limit)


def chosen_blocks(
    scores: Sequence[dict[int, float]], wanted: Sequence[int], keep: int
) -> list[Block]:
    """At one layer: every document's `wanted` best middle blocks, and of all these the `keep` best;
    equal scores go to the lower document, then the lower block. Ascending."""
    retrieved = []
    for i, (of_document, count) in enumerate(zip(scores, wanted, strict=True)):
        best = sorted(of_document, key=lambda j: (-of_document[j], j))[:count]
        retrieved += [(-of_document[j], i, j) for j in best]
    return sorted((i, j) for _, i, j in sorted(retrieved)[:keep])
