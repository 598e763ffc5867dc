"""Which prompt entries every eviction method keeps, by loops over lists (docs/specification.md §2).

Methods take one attention tensor per layer, `[heads, n, n]` (query head, query row, key; rows that
were not computed are NaN and may not be asked for), as `Trace.attention` holds them, and return
`Kept`. Scores are means of softmax weights over the queries and over the query heads of a KV
head, then pooled. Equal scores: the lower token wins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.references.budgets import ada_counts, headkv_counts, pyramid_counts
from tests.references.kvec import kvec
from tests.references.scores import (
    Kept,
    Region,
    attention_weights,
    best,
    everything,
    group_mean,
    pool,
    window_scores,
    with_always,
)

__all__ = [
    "Kept",
    "Region",
    "ada_pyramidkv",
    "ada_snapkv",
    "attention_weights",
    "gemfilter",
    "h2o",
    "headkv",
    "kvec",
    "last_row_logits",
    "pyramidkv",
    "snapkv",
    "streaming_llm",
]


def keep_counts(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    counts: Sequence[Sequence[int]],
    kernel: int,
    kind: str,
) -> Kept:
    """counts[layer][kv head] best competitors by SnapKV score, and the always kept ones."""
    out = []
    for attention, of_layer in zip(attentions, counts, strict=True):
        scores = window_scores(attention, kv_heads, region, kernel, kind)
        chosen = [
            best(head, region.competitors, count)
            for head, count in zip(scores, of_layer, strict=True)
        ]
        out.append([with_always(region, head) for head in chosen])
    return out


# -- methods --------------------------------------------------------------------------------------


def streaming_llm(layers: int, kv_heads: int, region: Region, sinks: int = 4) -> Kept:
    """The prompt's first `sinks` tokens and the last others (§2.1); the window plays no part.

    protect: S and Q, the sinks that lie in D, then the last document tokens. Unprotected: first
    min(sinks, budget − 1), so that the last token is always there.
    """
    if region.fits:
        return everything(region, layers, kv_heads)
    if region.protect:
        documents = region.competitors
        first = [t for t in documents if t < sinks][: region.free]
        rest = [t for t in documents if t not in first]
        last = rest[len(rest) - (region.free - len(first)) :]
        kept = with_always(region, [*first, *last])
    else:
        count = min(sinks, region.budget - 1)
        last = list(range(region.tokens - (region.budget - count), region.tokens))
        kept = [*range(count), *last]
    return [[list(kept) for _ in range(kv_heads)] for _ in range(layers)]


def h2o(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    rows: Sequence[int] | None = None,
) -> Kept:
    """Column sums of attention over all given query rows (§2.2), group mean, no pooling. `rows`:
    those that were computed (default all n); the recent window is the region's (8 in §2.2)."""
    if region.fits:
        return everything(region, len(attentions), kv_heads)
    queries = list(range(region.tokens)) if rows is None else sorted(rows)
    out = []
    for attention in attentions:
        per_head = group_mean(attention, kv_heads, queries)
        sums = [[sum(column) for column in zip(*head, strict=True)] for head in per_head]
        chosen = [best(head, region.competitors, region.free) for head in sums]
        out.append([with_always(region, head) for head in chosen])
    return out


def snapkv(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    kernel: int = 7,
    kind: str = "max",
) -> Kept:
    """§2.3, and A3(ex) of §1.6: the same count everywhere."""
    if region.fits:
        return everything(region, len(attentions), kv_heads)
    counts = [[region.free] * kv_heads for _ in attentions]
    return keep_counts(attentions, kv_heads, region, counts, kernel, kind)


def pyramidkv(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    beta: float = 20,
    kernel: int = 7,
    kind: str = "max",
) -> Kept:
    """§2.4: lower layers keep more, linearly; the mean over layers is SnapKV's count."""
    if region.fits:
        return everything(region, len(attentions), kv_heads)
    competitors = len(region.competitors)
    per_layer = pyramid_counts(region.free, len(attentions), region.tokens, competitors, beta)
    counts = [[count] * kv_heads for count in per_layer]
    return keep_counts(attentions, kv_heads, region, counts, kernel, kind)


def ada_snapkv(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    alpha: float = 0.2,
    kernel: int = 7,
    kind: str = "max",
) -> Kept:
    """§2.5: in every layer heads with high scores take entries from the others."""
    if region.fits:
        return everything(region, len(attentions), kv_heads)
    per_layer = [region.free] * len(attentions)
    return _ada(attentions, kv_heads, region, per_layer, alpha, kernel, kind)


def ada_pyramidkv(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    alpha: float = 0.2,
    beta: float = 20,
    kernel: int = 7,
    kind: str = "max",
) -> Kept:
    """§2.5 with the layer counts of §2.4."""
    if region.fits:
        return everything(region, len(attentions), kv_heads)
    competitors = len(region.competitors)
    per_layer = pyramid_counts(region.free, len(attentions), region.tokens, competitors, beta)
    return _ada(attentions, kv_heads, region, per_layer, alpha, kernel, kind)


def _ada(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    per_layer: Sequence[int],
    alpha: float,
    kernel: int,
    kind: str,
) -> Kept:
    counts = []
    for attention, count in zip(attentions, per_layer, strict=True):
        scores = window_scores(attention, kv_heads, region, kernel, kind)
        competing = [[head[t] for t in region.competitors] for head in scores]
        counts.append(ada_counts(competing, count, alpha))
    return keep_counts(attentions, kv_heads, region, counts, kernel, kind)


def headkv(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    head_scores: Sequence[Sequence[float]],
    beta: float = 1.5,
    kernel: int = 7,
    kind: str = "max",
) -> Kept:
    """§2.6: counts from static scores head_scores[layer][query head], tokens by SnapKV score."""
    if region.fits:
        return everything(region, len(attentions), kv_heads)
    counts = headkv_counts(head_scores, kv_heads, region.free, len(region.competitors), beta)
    return keep_counts(attentions, kv_heads, region, counts, kernel, kind)


def last_row_logits(q: Tensor, k: Tensor) -> Tensor:
    """GemFilter's logits `[n]` of one layer (§2.7): rotated q `[n, heads, d]`, k `[n, kv_heads,
    d]`; the last query on every key, no scale, no softmax, summed over query heads."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    return torch.tensor([sum(float(q[-1, h] @ key[h // group]) for h in range(heads)) for key in k])


def gemfilter(logits: Tensor, region: Region, kernel: int = 5) -> list[int]:
    """One set of tokens to prefill again (§2.7): the best by avg-pooled logits `[n]`. There is no
    window: the pool runs over all n tokens; unprotected, all n compete for the whole budget."""
    if region.fits:
        return list(range(region.tokens))
    pooled = pool(logits.tolist(), kernel, "avg")
    if region.protect:
        return with_always(region, best(pooled, region.competitors, region.free))
    return sorted(best(pooled, range(region.tokens), region.budget))
