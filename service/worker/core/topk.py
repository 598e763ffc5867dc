"""Top-k with stable ties: the lower index wins, on every device (torch.topk's order differs)."""

from __future__ import annotations

import torch
from torch import Tensor


def stable_topk(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest of the last dimension, ascending. k is clamped to what is there.

    scores `[..., n]` → `[..., min(k, n)]`, int64.
    """
    k = max(0, min(k, scores.shape[-1]))
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
    return order.sort(dim=-1).values
