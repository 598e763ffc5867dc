"""Top-k in which the lower index wins a tie; the order of torch.topk depends on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def stable_topk(scores: Tensor, k: int) -> Tensor:
    """Ascending indices of the k largest scores, `[..., n]` → `[..., min(k, n)]` int64."""
    k = max(0, min(k, scores.shape[-1]))
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
    return order.sort(dim=-1).values
