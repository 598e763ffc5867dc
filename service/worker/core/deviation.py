"""The distance between freshly computed and stored KV, which shows where reuse was wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.core.layer_view import LayerView


def squared_deviation(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """Squared distance between fresh and stored KV at every token of a layer.

    Keys are compared before RoPE: RoPE rotates both by the same angle, so the distance is the same.

    Args:
        keys: whether the distance between keys counts.
        values: whether the distance between values counts.

    Returns:
        `[n]` fp32, summed over KV heads and channels; zero for a token that has no stored KV or
        was not computed at this layer.
    """
    # Index of every token's row in `view.rows`, -1 for tokens that are not computed here.
    row_of_token = torch.full((view.layout.tokens,), -1, device=view.rows.device)
    row_of_token[view.rows] = torch.arange(len(view.rows), device=view.rows.device)
    deviation = torch.zeros(view.layout.tokens, device=view.rows.device)
    for segment, stored in zip(view.layout.segments, view.cached, strict=True):
        if stored is None or segment.uncached or not segment.tokens:
            continue
        segment_rows = row_of_token[segment.start : segment.end]
        computed = torch.nonzero(segment_rows >= 0).squeeze(1)
        stored_k, stored_v = stored.layer(view.layer)
        compared = [(view.fresh_k, stored_k)] if keys else []
        compared += [(view.fresh_v, stored_v)] if values else []
        for fresh, old in compared:
            gap = fresh[segment_rows[computed]].float() - old.to(fresh.device)[computed].float()
            deviation[segment.start + computed] += gap.square().sum((1, 2))
    return view.over_all_heads(deviation)


def squared_norm(view: LayerView, *, keys: bool) -> Tensor:
    """Squared length of the stored keys, or values, of every token of a layer.

    Returns:
        `[n]` fp32, summed over KV heads and channels; zero for a token that has no stored KV.
    """
    norm = torch.zeros(view.layout.tokens, device=view.rows.device)
    for segment, stored in zip(view.layout.segments, view.cached, strict=True):
        if stored is not None and not segment.uncached and segment.tokens:
            old = stored.layer(view.layer)[0 if keys else 1].to(norm.device).float()
            norm[segment.start : segment.end] = old.square().sum((1, 2))
    return view.over_all_heads(norm)
