"""Choosing by scores: top-k, pooling over neighbours, and splitting a budget exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import torch
import torch.nn.functional as F
from torch import Tensor


def stable_topk(scores: Tensor, k: int) -> Tensor:
    """Return ascending indices of the k largest scores, `[..., n]` → `[..., min(k, n)]` int64."""
    k = max(0, min(k, scores.shape[-1]))
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
    return order.sort(dim=-1).values


def max_pool(scores: Tensor, kernel: int) -> Tensor:
    """Return the largest score within `kernel // 2` tokens on either side, `[rows, n]` → `[rows,
    n]`."""
    reach = min(kernel // 2, scores.shape[1])  # there is nothing more to see beyond all n tokens
    return F.max_pool1d(scores.unsqueeze(0), 2 * reach + 1, stride=1, padding=reach).squeeze(0)


def exact(number: float) -> Fraction:
    """Return the number as it was written in decimal: 0.29 is 29/100."""
    return Fraction(str(number))


def apportion(weights: Sequence[float | Fraction], total: int, limits: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights`, with a limit for each part."""
    ratios = [Fraction(w) for w in weights]
    scale = lcm(*(r.denominator for r in ratios))
    whole = [int(r * scale) for r in ratios]
    parts = [0] * len(whole)
    open_parts = list(range(len(whole)))
    left = max(0, min(total, sum(limits)))
    while open_parts:
        shares = _largest_remainder([whole[i] for i in open_parts], left)
        for i, share in zip(open_parts, shares, strict=True):
            parts[i] = min(share, limits[i])
        over = [i for i, s in zip(open_parts, shares, strict=True) if s > limits[i]]
        if not over:
            break
        left -= sum(limits[i] for i in over)
        open_parts = [i for i in open_parts if i not in over]
    return parts


def _largest_remainder(weights: Sequence[int], total: int) -> list[int]:
    """Split `total` in proportion to `weights`, whole numbers so that fractions compare exactly."""
    mass = sum(weights)
    if not mass:
        weights, mass = [1] * len(weights), len(weights)
    parts = [total * w // mass for w in weights]
    by_fraction = sorted(range(len(parts)), key=lambda i: (-(total * weights[i] % mass), i))
    for i in by_fraction[: total - sum(parts)]:
        parts[i] += 1
    return parts
