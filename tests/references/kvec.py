"""K-VEC (docs/specification.md §2.8; the paper's eq. 8–16 and algorithm 1), step by step on
lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tests.references.budgets import exact
from tests.references.scores import (
    Kept,
    Region,
    Scores,
    best,
    everything,
    group_mean,
    mean_of_rows,
    pool,
    with_always,
)


@dataclass
class KVecLayer:
    """What one layer computed; token lists run over the candidates 0 .. n − O."""

    kept: list[list[int]]  # [kv head], with window (and S, Q)
    preserved: list[list[int]]  # [kv head], the guaranteed ones of step 6
    deviation: list[float]  # [kv head], σ
    widened: list[int]  # kv heads scored over O' rows
    base: Scores  # P of step 5 on: widened, pooled
    importance: list[float]  # I
    coverage: list[float]
    focus: list[float]
    score: Scores  # P'


def population_deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))


def kvec_layer(
    attention: Tensor,
    kv_heads: int,
    region: Region,
    layer: int,
    times_kept: list[int],
    *,
    extended: int = 32,
    delta: int = 3,
    lam: float = 1.0,
    beta: float = 0.25,
    pooling: str = "none",
) -> KVecLayer:
    """One layer; `times_kept` is n_t `[n]`, zeros before layer 0, and is updated.

    O is the region's window w, O' the last min(extended, |Q|) rows (never fewer than O). `pooling`:
    "none", or "max7" on P before focus is added, so that step 6 also ranks by pooled P.
    """
    assert pooling in ("none", "max7")
    tokens, candidates = region.tokens, region.candidates
    window = range(candidates, tokens)
    extended_rows = range(tokens - max(region.rows, min(extended, region.question)), tokens)

    # 1. P over the window
    p = [head[:candidates] for head in mean_of_rows(attention, kv_heads, window)]
    # 2. The least focused heads look further back
    deviation = [population_deviation(head) for head in p]
    widened = sorted(range(kv_heads), key=lambda g: (deviation[g], g))[:delta]
    over_extended = mean_of_rows(attention, kv_heads, extended_rows)
    for g in widened:
        p[g] = over_extended[g][:candidates]
    # 3. Importance: the largest head of each window row, then the mean
    rows_of_head = group_mean(attention, kv_heads, window)
    importance = [
        sum(max(head[i][t] for head in rows_of_head) for i in range(len(window))) / len(window)
        for t in range(candidates)
    ]
    # 4. Coverage by earlier layers, focus
    covered = [times_kept[t] / (layer + 1) for t in range(candidates)]
    focus = [importance[t] * (1 - covered[t]) for t in range(candidates)]
    # 5. P'
    if pooling == "max7":
        p = [pool(head, 7) for head in p]
    score = [[head[t] + lam * focus[t] for t in range(candidates)] for head in p]
    # 6. A guaranteed share by P alone
    count = min(math.floor(exact(beta) * region.budget), region.free)
    preserved = [sorted(best(head, region.competitors, count)) for head in p]
    # 7. The rest by P'
    kept = []
    for g in range(kv_heads):
        others = [t for t in region.competitors if t not in preserved[g]]
        more = best(score[g], others, region.free - len(preserved[g]))
        kept.append(with_always(region, [*preserved[g], *more]))
        for t in preserved[g]:
            score[g][t] = 1.0
    # 8. n_t
    for t in region.competitors:
        if any(t in head for head in kept):
            times_kept[t] += 1
    return KVecLayer(kept, preserved, deviation, widened, p, importance, covered, focus, score)


def kvec_layers(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    *,
    extended: int = 32,
    delta: int = 3,
    lam: float = 1.0,
    beta: float = 0.25,
    pooling: str = "none",
) -> list[KVecLayer]:
    """All layers in order, n_t starting from zero. The prompt must exceed the budget."""
    assert not region.fits
    times_kept = [0] * region.tokens
    return [
        kvec_layer(
            attention,
            kv_heads,
            region,
            layer,
            times_kept,
            extended=extended,
            delta=delta,
            lam=lam,
            beta=beta,
            pooling=pooling,
        )
        for layer, attention in enumerate(attentions)
    ]


def kvec(
    attentions: Sequence[Tensor],
    kv_heads: int,
    region: Region,
    *,
    extended: int = 32,
    delta: int = 3,
    lam: float = 1.0,
    beta: float = 0.25,
    pooling: str = "none",
) -> Kept:
    """Kept indices; the region's window is O (16 in §2.8)."""
    if region.fits:
        return everything(region, len(attentions), kv_heads)
    layers = kvec_layers(
        attentions,
        kv_heads,
        region,
        extended=extended,
        delta=delta,
        lam=lam,
        beta=beta,
        pooling=pooling,
    )
    return [layer.kept for layer in layers]
