"""How far fresh KV is from the stored one: what reuse got wrong at a token. Knows no method."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.core.layer_view import LayerView


def squared_deviation(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """Squared distance `[n]` fp32 of fresh from stored keys or values or both, summed over KV heads
    and channels; zero where there are not both a fresh and a stored one.

    Keys are compared before RoPE, which turns both alike and keeps their distance.
    """
    at = torch.full((view.layout.tokens,), -1, device=view.rows.device)
    at[view.rows] = torch.arange(len(view.rows), device=view.rows.device)
    out = torch.zeros(view.layout.tokens, device=view.rows.device)
    for segment, stored in zip(view.layout.segments, view.cached, strict=True):
        if stored is None or segment.uncached or not segment.tokens:
            continue
        here = at[segment.start : segment.end]
        rows = torch.nonzero(here >= 0).squeeze(1)
        stored_k, stored_v = stored.layer(view.layer)
        compared = [(view.fresh_k, stored_k)] if keys else []
        compared += [(view.fresh_v, stored_v)] if values else []
        for fresh, kept in compared:
            gap = fresh[here[rows]].float() - kept.to(fresh.device)[rows].float()
            out[segment.start + rows] += gap.square().sum((1, 2))
    return out
