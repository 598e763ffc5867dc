"""LegoLink, CacheBlend and the exact operation count (docs/specification.md §1.3,
§1.4, §4), on the slow decoder of `prefill.py`.

A method is a list of token sets, one per layer: the rows whose K and V are computed there
(`Reference.stitched`). Ratios are exact decimals of all n prompt tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tests.references.prefill import Prompt, Reference, Trace

RowSets = list[list[int]]  # [layer] -> token indices, ascending


def share(ratio: float, tokens: int) -> int:
    """⌊ratio · tokens⌋, ratio as it was written: 0.29 of 100 is 29."""
    return math.floor(Fraction(str(ratio)) * tokens)


def top(scores: Sequence[float], among: Sequence[int], count: int) -> list[int]:
    """The `count` highest (at most all), lower index first among equals; ascending."""
    return sorted(sorted(among, key=lambda t: (-scores[t], t))[:count])


def cached_documents(prompt: Prompt) -> list[int]:
    """Document tokens with stored KV: all that a method may choose from."""
    return prompt.indices(uncached=False, documents_only=True)


def always_computed(prompt: Prompt) -> list[int]:
    """Q and every segment without stored KV."""
    return sorted({*prompt.indices(uncached=True), *prompt.question_indices})


# -- LegoLink / EPIC (docs/specification.md §1.4) --------------------------------------------------


def legolink_rows(
    prompt: Prompt, k_first: int = 20, k_last: int = 20, *, skip_first_doc: bool = False
) -> list[int]:
    """First and last tokens of each cached document; a shorter document as a whole, and once.

    The first document is the first one that has tokens.
    """
    rows: set[int] = set()
    seen = 0
    for number, ids in enumerate(prompt.documents, 1):
        seen += bool(ids)
        if prompt.stored[number] is None or (skip_first_doc and seen == 1):
            continue
        tokens = range(prompt.starts[number], prompt.starts[number] + len(ids))
        rows |= {*tokens[:k_first], *tokens[max(0, len(ids) - k_last) :]}
    return sorted(rows)


def legolink(
    reference: Reference,
    prompt: Prompt,
    k_first: int = 20,
    k_last: int = 20,
    *,
    skip_first_doc: bool = False,
) -> Trace:
    """Computes these rows, uncached segments and Q, starting from their embeddings."""
    rows = legolink_rows(prompt, k_first, k_last, skip_first_doc=skip_first_doc)
    return reference.forced_rows(prompt, [*rows, *always_computed(prompt)])


# -- CacheBlend (docs/specification.md §1.3) -------------------------------------------------------


def deviation(prompt: Prompt, trace: Trace, layer: int, metric: str = "V") -> list[float]:
    """δ(t) per token: Σ over heads and channels of (fresh − stored)², V or K before RoPE, float32;
    NaN where the pass computed nothing or nothing is stored."""
    fresh = (trace.v if metric == "V" else trace.k_pre)[layer]
    computed = trace.hidden[layer].isfinite().all(-1)
    out = [float("nan")] * trace.n
    for segment, start in zip(prompt.stored, prompt.starts, strict=False):
        if segment is None:
            continue
        stored = (segment.v if metric == "V" else segment.k_pre)[layer]
        for i in range(segment.tokens):
            if computed[start + i]:
                out[start + i] = float(((fresh[start + i] - stored[i]) ** 2).sum())
    return out


def cacheblend_selected(
    reference: Reference,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    metric: str = "V",
    check_layer: int = 1,
) -> RowSets:
    """Re of the check layer, then of the layers after it, one per ratio (those that the model
    has): cached document tokens only, each set the top of the one before by that layer's δ."""
    placed, fixed = reference.placed(prompt), always_computed(prompt)
    every, current = list(range(len(prompt.ids))), cached_documents(prompt)
    computed = [every] * (check_layer + 1)
    out: RowSets = []
    for ratio in ratios[: reference.layers - check_layer]:
        layer = check_layer + len(out)
        missing = reference.layers - len(computed)
        trace = reference.stitched(prompt.ids, placed, [*computed, *[computed[-1]] * missing])
        scores = deviation(prompt, trace, layer, metric)
        current = top(scores, current, share(ratio, len(every)))
        out.append(current)
        computed.append(sorted({*current, *fixed}))
    return out


def cacheblend_computed(
    reference: Reference,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    metric: str = "V",
    check_layer: int = 1,
) -> RowSets:
    """Layers up to the check layer: K, V of all tokens. Layer c + i: those of Re_i (the last one
    from the schedule's end on), of uncached segments and of Q."""
    assert list(ratios) == sorted(ratios, reverse=True) and ratios
    selected = cacheblend_selected(
        reference, prompt, ratios, metric=metric, check_layer=check_layer
    )
    sets = [list(range(len(prompt.ids)))] * (check_layer + 1)
    sets += [sorted({*rows, *always_computed(prompt)}) for rows in selected]
    sets += [sets[-1]] * reference.layers
    return sets[: reference.layers]


def cacheblend(
    reference: Reference,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    metric: str = "V",
    check_layer: int = 1,
) -> Trace:
    """One ratio: CacheBlend as its code does it. Several: the paper's gradual filtering, where
    layer c + i ranks the rows it computed and writes fresh K, V of all of these."""
    computed = cacheblend_computed(
        reference, prompt, ratios, metric=metric, check_layer=check_layer
    )
    return reference.stitched(prompt.ids, reference.placed(prompt), computed)


# -- operations (docs/specification.md §4) ---------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What a decoder's operation count depends on; the MLP is gated (three matrices)."""

    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def visible_pairs(rows: Sequence[int]) -> int:
    """(query, key) pairs of these rows: row t sees the keys 0 .. t."""
    return sum(t + 1 for t in rows)


def flops(
    shape: Shape,
    projected: Sequence[Sequence[int]],
    finished: Sequence[Sequence[int]],
    scored: Sequence[Sequence[int]] | None = None,
) -> int:
    """Multiplications and additions of one prefill, from token sets per layer.

    projected: rows whose q, k, v are computed, 2 · in · out per matrix. finished: rows that attend
    (4 · heads · head_dim per visible pair: scores and mixing) and go through o_proj and MLP.
    scored: rows whose attention is computed once more for a ranking only (half of that per pair).
    One row is unembedded.
    """
    query_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    total = 2 * shape.hidden * shape.vocabulary
    for rows in projected:
        total += len(rows) * 2 * shape.hidden * (query_width + 2 * kv_width)
    for rows in finished:
        total += len(rows) * (2 * query_width * shape.hidden + 3 * 2 * shape.hidden * shape.mlp)
        total += visible_pairs(rows) * 4 * query_width
    for rows in scored or ():
        total += visible_pairs(rows) * 2 * query_width
    return total


def finished_rows(computed: Sequence[Sequence[int]], last: Sequence[int]) -> list[list[int]]:
    """Rows that attend and pass the MLP at each layer: those the next layer computes; after the
    last layer the ones whose output is wanted (the last token, or all rows of that layer)."""
    return [*(list(rows) for rows in computed[1:]), list(last)]
