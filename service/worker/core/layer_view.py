"""What fusion and eviction methods may look at inside the layer loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from service.worker.core.flops import FlopCount
from service.worker.core.layout import PromptLayout


class CachedSegment(Protocol):
    """A segment's stored KV: per layer k (before RoPE) and v, each `[tokens, kv_heads, d]`."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor]: ...


class ProjectedRows(NamedTuple):
    """What the projections of a layer gave for some rows.

    Attributes:
        q: queries after RoPE `[m, heads, d]`.
        fresh_q: queries before RoPE `[m, heads, d]`.
        fresh_k: keys before RoPE `[m, kv_heads, d]`.
        fresh_v: values `[m, kv_heads, d]`.
    """

    q: Tensor
    fresh_q: Tensor
    fresh_k: Tensor
    fresh_v: Tensor


@dataclass(frozen=True)
class AttentionScores:
    """What passes over the stitched cache found: attention that every token received, summed over
    layers, `[n]` fp32 each; zero for tokens of uncached segments.

    Attributes:
        question: attention paid by the question's rows.
        seeds: attention paid by the rows that a method sent after them; zero without any.
    """

    question: Tensor
    seeds: Tensor


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """A layer of a prompt after its projections, before its attention.

    Attributes:
        rows: ascending indices of the rows computed at this layer `[m]`.
        q: their queries after RoPE `[m, heads, d]`.
        k, v: the layer's KV cache, keys after RoPE, fresh KV of `rows` in place
            `[kv_heads, n, d]`.
        fresh_q, fresh_k, fresh_v: what was just computed, before RoPE
            `[m, heads or kv_heads, d]`.
        cached: stored KV by segment, None where a segment has none.
        scale: what scores are multiplied with before the softmax.
        flops: where a method counts work of its own.
        attention_scores: what passes over the stitched cache found; None if there was none.
    """

    layer: int
    layout: PromptLayout
    rows: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    fresh_q: Tensor
    fresh_k: Tensor
    fresh_v: Tensor
    cached: Sequence[CachedSegment | None]
    scale: float
    flops: FlopCount
    attention_scores: AttentionScores | None = None

    def with_rows_behind(self, rows: Tensor, projected: ProjectedRows) -> LayerView:
        """The same layer, with more rows, which stand behind `rows` and whose KV is in place."""
        return replace(
            self,
            rows=torch.cat([self.rows, rows]),
            q=torch.cat([self.q, projected.q]),
            fresh_q=torch.cat([self.fresh_q, projected.fresh_q]),
            fresh_k=torch.cat([self.fresh_k, projected.fresh_k]),
            fresh_v=torch.cat([self.fresh_v, projected.fresh_v]),
        )
