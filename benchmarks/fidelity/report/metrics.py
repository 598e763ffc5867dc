"""The measured quantities, as functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# The layers of A3's Figure 3: 4, 13, 22 and 31 of 32, counted from 0.
_PAPER_DEPTHS = (4, 13, 22, 31)
_PAPER_LAST = 31


def depths(layers: int) -> tuple[int, ...]:
    """A3's four depths scaled to `layers` layers, ascending; fewer if the model is too shallow."""
    return tuple(sorted({round(d * (layers - 1) / _PAPER_LAST) for d in _PAPER_DEPTHS}))


def relative_error(full: Tensor, other: Tensor, rows: slice) -> float:
    """‖other − full‖ / ‖full‖ over `rows` of `[kv_heads, n, d]`; 0 if there are none."""
    expected = full[:, rows]
    size = float(expected.norm())
    return float((other[:, rows] - expected).norm()) / size if size else 0.0


def map_distance(full: Tensor, other: Tensor) -> float:
    """L2 distance of attention rows `[heads, rows, n]`, mean over heads and rows (0 to √2)."""
    return float((other - full).norm(dim=-1).mean())


def hit_rate(
    recomputed: Sequence[int], attention_scores: Tensor, candidates: slice
) -> float | None:
    """Share of the recomputed tokens that are among the best ones by attention.

    With p = |recomputed|: |recomputed ∩ top-p of `attention_scores` `[n]` among `candidates`| / p.
    `recomputed` are indices within `candidates`. None if nothing was recomputed.
    """
    if not recomputed:
        return None
    of_candidates = attention_scores[candidates]
    order = torch.sort(of_candidates, descending=True, stable=True).indices
    top = {candidates.start + int(i) for i in order[: len(recomputed)]}
    return len(top.intersection(recomputed)) / len(recomputed)
