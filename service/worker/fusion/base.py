"""A fusion method: a dataclass of parameters and up to three hooks of the layer loop.

The loop (`service.worker.prefill`) owns everything else: placing cached keys at their positions,
writing computed ones, the index mask, the rows that no method may drop (question, cold segments).
A method never touches the store and sees the cache only through its hooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from service.worker.layout import PromptLayout


@dataclass(frozen=True)
class LayerView:
    """What a method may look at after QKV of a layer, before its attention.

    rows `[m]` ascending indices computed at this layer; q `[m, heads, d]` rotated; k, v
    `[kv_heads, n, d]`: the layer's cache, cached segments and the rows' fresh KV in place.
    """

    layer: int
    layout: PromptLayout
    rows: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float


@dataclass(frozen=True)
class FusionMethod:
    """Base: recompute nothing but the question, keys at their global positions."""

    # A method that computes every row itself has nothing loaded for it.
    reads_cache: ClassVar[bool] = True

    def start_rows(self, layout: PromptLayout) -> Tensor:
        """Rows computed from the embedding on, beside the forced ones (question, cold)."""
        return layout.question_rows

    def key_positions(self, layout: PromptLayout) -> Tensor:
        """RoPE position `[n]` at which cached keys are placed."""
        return layout.all_rows

    def select(self, view: LayerView) -> Tensor | None:
        """Rows to go on with from this layer's attention, beside the forced ones; None: all."""
        return None
