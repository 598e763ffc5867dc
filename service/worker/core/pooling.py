"""Pooling of scores over neighbouring tokens, centred, with stride 1."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def max_pool(scores: Tensor, kernel: int) -> Tensor:
    """Largest score within `kernel // 2` tokens on either side, `[rows, n]` → `[rows, n]`."""
    reach = min(kernel // 2, scores.shape[1])  # there is nothing more to see beyond all n tokens
    return F.max_pool1d(scores.unsqueeze(0), 2 * reach + 1, stride=1, padding=reach).squeeze(0)


def mean_pool(scores: Tensor, kernel: int) -> Tensor:
    """Sum of the same neighbours divided by `kernel`, `[rows, n]` → `[rows, n]`.

    Scores beyond the ends count as zero, so results are smaller near the edges, as in the public
    implementations.
    """
    reach = min(kernel // 2, scores.shape[1])
    width = 2 * reach + 1
    pooled = F.avg_pool1d(scores.unsqueeze(0), width, stride=1, padding=reach).squeeze(0)
    return pooled * (width / kernel)
