"""What a budget means on a prompt, and how eviction methods score its tokens, by loops over lists
(docs/specification.md §2 "Common" and §2.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Kept = list[list[list[int]]]  # [layer][kv head] -> indices, ascending
Scores = list[list[float]]  # [kv head][token]


@dataclass(frozen=True)
class Region:
    """The prompt S ‖ D ‖ Q and what a budget means on it.

        protect:      0 .. |S| always | documents compete | Q always, its last w rows score
        not protect:  0 .. n-w compete                    | n-w .. n always, and they score

    budget: prompt entries per layer and KV head (mean, where methods divide unequally), including
    the always kept ones. Unprotected methods need a budget of 2 or more.
    """

    tokens: int
    system: int
    question: int
    budget: int
    window: int = 32
    protect: bool = True

    @property
    def fits(self) -> bool:
        return self.tokens <= self.budget

    @property
    def rows(self) -> int:
        """w: the last rows of the prompt, whose attention scores the others."""
        w = min(self.window, self.question)
        w = w if self.protect else min(w, self.budget - 1)
        assert w > 0
        return w

    @property
    def candidates(self) -> int:
        """Tokens before the window: 0 .. candidates. Scores and pools end here."""
        return self.tokens - self.rows

    @property
    def competitors(self) -> list[int]:
        if self.protect:
            return list(range(self.system, self.tokens - self.question))
        return list(range(self.candidates))

    @property
    def always(self) -> list[int]:
        return sorted({*range(self.tokens)} - {*self.competitors})

    @property
    def free(self) -> int:
        """b: entries per head beyond the always kept ones."""
        return max(0, self.budget - len(self.always))


def attention_weights(q: Tensor, k: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """`[heads, n, n]` of rotated q `[n, heads, d]` and k `[n, kv_heads, d]`, softmax over keys
    j <= i in float32; rows other than `rows` are NaN."""
    n, heads, d = q.shape
    group = heads // k.shape[1]
    out = torch.full((heads, n, n), float("nan"))
    for h in range(heads):
        for i in range(n) if rows is None else rows:
            logits = [float(q[i, h] @ k[j, h // group]) / math.sqrt(d) for j in range(i + 1)]
            out[h, i] = 0
            out[h, i, : i + 1] = torch.softmax(torch.tensor(logits), 0)
    return out


def group_mean(attention: Tensor, kv_heads: int, rows: Sequence[int]) -> list[Scores]:
    """Attention per KV head: [kv head][row][token], the mean over its query heads."""
    group = attention.shape[0] // kv_heads
    out = []
    for g in range(kv_heads):
        of_head = [attention[h] for h in range(g * group, (g + 1) * group)]
        per_row = []
        for i in rows:
            weights = [head[i].tolist() for head in of_head]
            per_row.append([sum(column) / group for column in zip(*weights, strict=True)])
        out.append(per_row)
    return out


def mean_of_rows(attention: Tensor, kv_heads: int, rows: Sequence[int]) -> Scores:
    """[kv head][token]: mean over the rows. A row gives 0 to tokens after it and is counted."""
    return [
        [sum(column) / len(rows) for column in zip(*per_row, strict=True)]
        for per_row in group_mean(attention, kv_heads, rows)
    ]


def pool(scores: Sequence[float], kernel: int, kind: str = "max") -> list[float]:
    """Stride 1, kernel // 2 padded at both ends: max ignores the padding, avg counts it as 0."""
    assert kernel % 2 == 1 and kind in ("max", "avg")
    reach, out = kernel // 2, []
    for t in range(len(scores)):
        seen = scores[max(0, t - reach) : t + reach + 1]
        out.append(max(seen) if kind == "max" else sum(seen) / kernel)
    return out


def window_scores(
    attention: Tensor, kv_heads: int, region: Region, kernel: int = 7, kind: str = "max"
) -> Scores:
    """SnapKV's score of every candidate (§2.3): window mean, group mean, pooled."""
    rows = range(region.candidates, region.tokens)
    means = mean_of_rows(attention, kv_heads, rows)
    return [pool(head[: region.candidates], kernel, kind) for head in means]


def best(scores: Sequence[float], among: Sequence[int], count: int) -> list[int]:
    """The `count` tokens with the highest score, lower index first among equals."""
    assert count >= 0
    return sorted(among, key=lambda t: (-scores[t], t))[:count]


def with_always(region: Region, chosen: Sequence[int]) -> list[int]:
    return sorted({*region.always, *chosen})


def everything(region: Region, layers: int, kv_heads: int) -> Kept:
    return [[list(range(region.tokens)) for _ in range(kv_heads)] for _ in range(layers)]
