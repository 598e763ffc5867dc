"""What fusion and eviction methods may look at inside the layer loop. Knows no method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from service.worker.core.flops import FlopCount
from service.worker.core.layout import PromptLayout


class CachedSegment(Protocol):
    """A segment's stored KV: per layer k (before RoPE) and v, each `[tokens, kv_heads, d]`."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class AttentionScores:
    """What a first pass over the stitched cache found, `[n]` fp32 each, summed over layers, zero at
    tokens of cold segments. asked: what the question's rows look at; followed: what the leads do,
    rows that a method sent after it (zero without any)."""

    asked: Tensor
    followed: Tensor


@dataclass(frozen=True)
class LayerView:
    """A layer of a prompt after QKV, before its attention.

    rows `[m]`: ascending indices computed at this layer; q `[m, heads, d]`: their queries after
    RoPE; k, v `[kv_heads, n, d]`: the layer's cache after RoPE, fresh KV of the rows in place;
    fresh_q `[m, heads, d]`, fresh_k, both before RoPE, and fresh_v `[m, kv_heads, d]`: what was
    just computed; cached: stored KV by segment, None if cold.
    `flops`: where a method counts work of its own. evidence: what a first pass found, None without
    one.
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

    def followed_by(
        self, rows: Tensor, q: Tensor, fresh_q: Tensor, fresh_k: Tensor, fresh_v: Tensor
    ) -> LayerView:
        """With these rows too, which stand behind them and whose KV is in place."""
        return replace(
            self,
            rows=torch.cat([self.rows, rows]),
            q=torch.cat([self.q, q]),
            fresh_q=torch.cat([self.fresh_q, fresh_q]),
            fresh_k=torch.cat([self.fresh_k, fresh_k]),
            fresh_v=torch.cat([self.fresh_v, fresh_v]),
        )
