"""Shifts stored KV by what computed rows of the same document show that it is wrong by."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.core.layer_view import LayerView


def shift(view: LayerView, probes: Tensor, weights: Tensor, *, keys: bool) -> None:
    """Adds to each cached token that is not computed at this layer its weight times the mean of
    fresh minus stored over its document's probes. Documents without a probe stay as they are.

    Args:
        view: its keys or values are changed in place.
        probes: ascending prompt rows, all computed at this layer `[p]`.
        weights: of every token `[n]` fp32.
        keys: whether keys are shifted (before RoPE), or values.
    """
    for segment, stored in zip(view.layout.segments[1:], view.cached[1:], strict=True):
        if stored is None or segment.uncached or not segment.tokens:
            continue
        inside = (probes >= segment.start) & (probes < segment.end)
        of_document = probes[inside]
        if not len(of_document):
            continue
        old = stored.layer(view.layer)[0 if keys else 1].to(view.k.device)
        fresh = view.fresh_k if keys else view.fresh_v
        computed = torch.searchsorted(view.rows, of_document)
        gap = fresh[computed].float() - old[of_document - segment.start].float()
        mean = gap.mean(0)
        rows = torch.arange(segment.start, segment.end, device=view.rows.device)
        rows = rows[~torch.isin(rows, view.rows)]
        moved = old[rows - segment.start].float() + weights[rows, None, None] * mean
        moved = moved.to(view.k.dtype)
        if keys:
            view.k[:, rows] = view.rotate(moved, rows).transpose(0, 1)
        else:
            view.v[:, rows] = moved.transpose(0, 1)
