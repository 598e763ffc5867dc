"""How many entries each layer and KV head keeps, in exact arithmetic (docs/specification.md
§2.4–§2.6).

All real-valued allocations are fractions; they become whole numbers in one place, `allocate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def exact(number: float | Fraction) -> Fraction:
    """The decimal number that was written: 0.29 is 29/100."""
    return number if isinstance(number, Fraction) else Fraction(str(number))


def largest_remainder(shares: Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers with the sum `total`, each its share rounded down or up.

    Everybody gets the floor; what is left goes to the largest fractions, lower index first among
    equals. The shares must sum to `total`.
    """
    assert sum(shares) == total
    out = [math.floor(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: (out[i] - shares[i], i))
    for i in order[: total - sum(out)]:
        out[i] += 1
    return out


def allocate(weights: Sequence[Fraction], total: int, most: Sequence[int]) -> list[int]:
    """`total` (at most sum(most)) divided in proportion to `weights` (>= 0), entry i <= most[i].

    Round: the remaining total is divided among the open entries in proportion to their weights
    (equally, if all of these are 0) and made whole by largest remainder. Entries that came out
    above their maximum get exactly the maximum and are closed; if there were any, another round
    divides what remains among the still open ones.

    Sums are exact; where two entries have one maximum, a larger weight never gets less.
    """
    assert len(weights) == len(most) and all(w >= 0 for w in weights)
    remaining = min(total, sum(most))
    out = [0] * len(weights)
    still_open = list(range(len(weights)))
    while still_open:
        scale = sum(weights[i] for i in still_open)
        if scale:
            shares = [remaining * Fraction(weights[i]) / scale for i in still_open]
        else:
            shares = [Fraction(remaining, len(still_open))] * len(still_open)
        counts = dict(zip(still_open, largest_remainder(shares, remaining), strict=True))
        over = [i for i in still_open if counts[i] > most[i]]
        if not over:
            for i in still_open:
                out[i] = counts[i]
            break
        for i in over:
            out[i] = most[i]
            remaining -= most[i]
            still_open.remove(i)
    return out


def pyramid_line(
    b: int, layers: int, tokens: int, competitors: int, beta: float = 20
) -> list[Fraction]:
    """Real-valued entries per head of every layer (§2.4), from the widest layer 0 to the last.

    b: entries per head beyond the always kept ones, the mean over layers. `tokens`: the whole
    prompt; `competitors`: tokens that compete for the b.
    """
    if tokens < 2 * b or layers == 1:
        return [Fraction(b)] * layers
    low = Fraction(math.floor(b / exact(beta)))
    high = 2 * b - low
    if high >= competitors:
        high = Fraction(competitors)
        low = 2 * b - high
    return [high - layer * (high - low) / (layers - 1) for layer in range(layers)]


def pyramid_counts(
    b: int, layers: int, tokens: int, competitors: int, beta: float = 20
) -> list[int]:
    """Entries per head of every layer, sum exactly layers · b."""
    line = pyramid_line(b, layers, tokens, competitors, beta)
    return allocate(line, layers * b, [competitors] * layers)


def ada_counts(scores: Sequence[Sequence[float]], b: int, alpha: float = 0.2) -> list[int]:
    """Entries per KV head of one layer (§2.5), sum exactly heads · b.

    scores[g][i]: pooled scores of the competitors. n_h counts head h's entries among the top
    heads · b of all heads together; real-valued c_h = (1 − α) n_h + α b. Equal scores: the lower
    token wins, then the lower head, so that heads with equal scores get equal counts.
    """
    heads, share = len(scores), exact(alpha)
    entries = [(-s, i, g) for g, head in enumerate(scores) for i, s in enumerate(head)]
    n = [0] * heads
    for _, _, g in sorted(entries)[: heads * b]:
        n[g] += 1
    real = [(1 - share) * n_h + share * b for n_h in n]
    return allocate(real, heads * b, [len(head) for head in scores])


def headkv_counts(
    head_scores: Sequence[Sequence[float]],
    kv_heads: int,
    b: int,
    competitors: int,
    beta: float = 1.5,
) -> list[list[int]]:
    """Entries per layer and KV head (§2.6), sum exactly layers · kv_heads · b.

    head_scores[l][h] per query head, normalised here to sum 1. A query head's real-valued cap is
    score · pool + (b − b/β) with pool = b/β · layers · heads; a KV head's is its group's mean.
    """
    layers, heads = len(head_scores), len(head_scores[0])
    group = heads // kv_heads
    base = b / exact(beta)
    pool = base * layers * heads
    scores = [[exact(s) for s in layer] for layer in head_scores]
    total = sum(sum(layer) for layer in scores)
    real = []
    for layer in scores:
        caps = [s / total * pool + (b - base) for s in layer]
        for g in range(kv_heads):
            real.append(sum(caps[g * group : (g + 1) * group], Fraction(0)) / group)
    entries = layers * kv_heads
    flat = allocate(real, entries * b, [competitors] * entries)
    return [flat[layer * kv_heads : (layer + 1) * kv_heads] for layer in range(layers)]
