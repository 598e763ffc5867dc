"""What methods read inside the layer loop, and what a prefill leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from service.worker.layout import PromptLayout
from service.worker.model.attention_rule import PLAIN, AttentionRule
from service.worker.model.flops import FlopCount
from service.worker.model.rope import RotaryTable


class CachedSegment(Protocol):
    """The stored KV of one segment."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys (before RoPE) and values of a layer, each `[tokens, kv_heads, head_dim]`."""


class Replaced(NamedTuple):
    """Stored KV of which fresh KV took the place in the cache.

    Attributes:
        k: keys after RoPE `[m, kv_heads, head_dim]` contiguous.
        v: values, like `k`.
        rope: by which keys are rotated.
    """

    k: Tensor
    v: Tensor
    rope: RotaryTable


class ProjectedRows(NamedTuple):
    """Queries, keys and values of some rows at one layer.

    Attributes:
        q: queries after RoPE `[m, heads, head_dim]`.
        fresh_q: queries before RoPE `[m, heads, head_dim]`.
        fresh_k: keys before RoPE `[m, kv_heads, head_dim]`.
        fresh_v: values `[m, kv_heads, head_dim]`.
        replaced: what stood in the cache before; None where that was not kept.
    """

    q: Tensor
    fresh_q: Tensor
    fresh_k: Tensor
    fresh_v: Tensor
    replaced: Replaced | None = None


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """A layer of a prompt after its projections and before its attention.

    Attributes:
        layer: number of the layer, from 0.
        layout: the segments of the prompt.
        rows: ascending indices of the rows computed at this layer `[m]`.
        q: queries of `rows` after RoPE `[m, heads, head_dim]`.
        k: keys of the whole prompt after RoPE, those of `rows` already replaced by fresh ones
            `[kv_heads, n, head_dim]`.
        v: values of the whole prompt, likewise `[kv_heads, n, head_dim]`.
        fresh_q: queries of `rows` before RoPE `[m, heads, head_dim]`.
        fresh_k: keys of `rows` before RoPE `[m, kv_heads, head_dim]`.
        fresh_v: values of `rows` `[m, kv_heads, head_dim]`.
        replaced: what stood in `k` and `v` at `rows` before; None where that was not kept, as on a
            CPU: read `cached` there.
        cached: stored KV by segment, None where a segment has none.
        scale: factor of the attention scores before the softmax.
        rule: what this layer adds to causal attention: a window, a soft cap, sinks.
        rope: by which queries and keys are rotated.
        flops: the prompt's FLOP count, to which a method adds the work it does itself.
        attention_scores: attention that every token received in an earlier pass over the stitched
            cache `[n]` fp32, summed over layers; None if there was no such pass.
        memo: what a method keeps from layer to layer of this prompt, by names of its own.
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
    rope: RotaryTable
    flops: FlopCount
    rule: AttentionRule = PLAIN
    attention_scores: Tensor | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    replaced: Replaced | None = None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x `[m, kv_heads, head_dim]` rotated to `positions` `[m]`."""
        return self.rope.rotate(x, positions)


@dataclass
class PrefillResult:
    """The logits of the first answer token, and the work that computing them took.

    Attributes:
        logits: `[vocabulary]` fp32.
        observed: per layer, the tensor that the eviction method's `observe` returned.
        rows_per_layer: per layer, the number of rows whose attention was computed.
        rows: prompt rows that were computed anew, question included.
        layout: the prompt whose KV is in place now.
        kept_ids: indices of `layout`'s tokens in the original prompt; None if it is the original
            prompt (an eviction method may start over with fewer tokens).
        entries_per_head: KV entries per layer and KV head; None if every token of `layout` has one.
        held: prompt rows of the entries of layers with a window, by layer, where not every token of
            `layout` has one.
        coverage: share of the prompt's tokens whose KV is held by at least one layer.
    """

    logits: Tensor
    observed: list[Tensor]
    rows_per_layer: list[int]
    rows: Tensor
    flops: float
    layout: PromptLayout
    kept_ids: Tensor | None = None
    entries_per_head: int | None = None
    held: Mapping[int, Tensor] = field(default_factory=dict)
    coverage: float = 1.0
