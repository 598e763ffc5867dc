"""Shifts stored KV by what computed rows of the same document show that it is wrong by."""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.core.layer_view import LayerView


def shift(view: LayerView, probes: Tensor, weights: Tensor, *, keys: bool) -> None:
    """Adds to each cached token of a document that is not computed at this layer its weight times
    the mean of fresh minus stored over the document's probes.

    A document without a probe stays as it is.

    Args:
        view: its keys or values are changed in place.
        probes: ascending document rows, all computed at this layer `[p]`.
        weights: of every token `[n]` fp32.
        keys: whether keys are shifted (by a mean before RoPE), or values.
    """
    layout, device = view.layout, view.k.device
    fresh = (view.fresh_k if keys else view.fresh_v)[torch.searchsorted(view.rows, probes)].float()
    counts = layout.count_rows(probes)
    moved = weights.clone()
    moved[view.rows] = 0
    gaps = torch.zeros(layout.tokens, *fresh.shape[1:], device=device)
    first = 0
    for segment, stored, count in zip(layout.segments, view.cached, counts, strict=True):
        of_segment = slice(first, first + count)
        first += count
        if stored is None or segment.uncached or not count:
            moved[segment.start : segment.end] = 0
            continue
        old = stored.layer(view.layer)[0 if keys else 1]
        # Only the probes' rows go to the device, not the whole document a second time.
        old = old[(probes[of_segment] - segment.start).to(old.device)].to(device).float()
        gaps[segment.start : segment.end] = (fresh[of_segment] - old).mean(0)
    moved[layout.question_start :] = 0
    gaps *= moved[:, None, None]
    target = view.k if keys else view.v
    by = view.rotate(gaps, layout.all_rows) if keys else gaps
    target.copy_(target.float() + by.transpose(0, 1))
