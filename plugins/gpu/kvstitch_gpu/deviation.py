"""How far fresh KV is from stored KV, on a GPU without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.methods.layer_view import LayerView


def squared_deviation(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """`service.worker.methods.stored_kv.squared_deviation`."""
    if view.replaced is not None and not keys and len(view.rows) == view.layout.tokens:
        gap = (view.fresh_v.float() - view.replaced.v).square().sum((1, 2))
        # Where nothing is stored, anything may have stood.
        return torch.where(_stored(view), gap, 0.0)
    return _in_one_pass(view, keys=keys, values=values)


def _in_one_pass(view: LayerView, *, keys: bool, values: bool) -> Tensor:
    """Return it of all segments together."""
    layout, every = view.layout, len(view.rows) == view.layout.tokens
    deviation = torch.zeros(layout.tokens, device=view.k.device)
    segments = [
        (segment, stored.layer(view.layer))
        for segment, stored in zip(layout.segments, view.cached, strict=True)
        if stored is not None and not segment.uncached and segment.tokens
    ]
    for number, fresh in enumerate((view.fresh_k, view.fresh_v)):
        if not (keys, values)[number]:
            continue
        shape = layout.tokens, *fresh.shape[1:]
        old = torch.zeros(shape, dtype=fresh.dtype, device=fresh.device)
        for segment, stored in segments:
            old[segment.start : segment.end].copy_(stored[number], non_blocking=True)
        gap = (fresh.float() - (old if every else old[view.rows])).square().sum((1, 2))
        deviation = deviation + gap if every else deviation.index_add(0, view.rows, gap)
    return torch.where(_stored(view), deviation, 0.0)


def _stored(view: LayerView) -> Tensor:
    """Return whether KV is stored of each token of the prompt `[n]`."""

    def make() -> Tensor:
        found = torch.zeros(view.layout.tokens, dtype=torch.bool)
        for segment, stored in zip(view.layout.segments, view.cached, strict=True):
            found[segment.start : segment.end] = stored is not None and not segment.uncached
        return found

    return view.layout.once("whether KV is stored", make)
