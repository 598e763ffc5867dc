"""What methods read inside the layer loop, and what a prefill leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.model.model_facts import PLAIN, AttentionRule, FlopCount
from kvstitch.service.worker.model.rope import RotaryTable


class CachedSegment(Protocol):
    """The stored KV of one segment."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys (before RoPE) and values of a layer, each `[tokens, kv_heads, head_dim]`."""

    def state(self, layer: int) -> tuple[Tensor, str]:
        """Return bytes of what is stored for the mixers before a layer, and their codec."""


class Replaced(NamedTuple):
    """Stored KV of which fresh KV took the place in the cache."""

    k: Tensor  # keys after RoPE `[m, kv_heads, head_dim]` contiguous
    v: Tensor  # values, like `k`


class ProjectedRows(NamedTuple):
    """Queries, keys and values of some rows at one layer."""

    q: Tensor  # queries after RoPE `[m, heads, head_dim]`
    fresh_q: Tensor  # queries before RoPE `[m, heads, head_dim]`
    fresh_k: Tensor  # keys before RoPE `[m, kv_heads, head_dim]`
    fresh_v: Tensor  # values `[m, kv_heads, head_dim]`
    replaced: Replaced | None = None  # what stood in the cache before; None where that was not kept


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """A layer of a prompt after its projections and before its attention."""

    layer: int  # number of the layer, from 0
    layout: PromptLayout  # the segments of the prompt
    rows: Tensor  # ascending indices of the rows computed at this layer `[m]`
    q: Tensor  # queries of `rows` after RoPE `[m, heads, head_dim]`
    # keys of the whole prompt after RoPE, those of `rows` already replaced by fresh ones
    # `[kv_heads, n, head_dim]`
    k: Tensor
    v: Tensor  # values of the whole prompt, likewise `[kv_heads, n, head_dim]`
    fresh_q: Tensor  # queries of `rows` before RoPE `[m, heads, head_dim]`
    fresh_k: Tensor  # keys of `rows` before RoPE `[m, kv_heads, head_dim]`
    fresh_v: Tensor  # values of `rows` `[m, kv_heads, head_dim]`
    cached: Sequence[CachedSegment | None]  # stored KV by segment, None where a segment has none
    scale: float  # factor of the attention scores before the softmax
    rope: RotaryTable  # by which queries and keys are rotated
    flops: FlopCount  # the prompt's FLOP count, to which a method adds the work it does itself
    # what this layer adds to causal attention: a window, a soft cap, sinks
    rule: AttentionRule = PLAIN
    # attention that every token received in an earlier pass over the stitched cache `[n]` fp32,
    # summed over layers; None if there was no such pass
    attention_scores: Tensor | None = None
    # what a method keeps from layer to layer of this prompt, by names of its own
    memo: dict[str, Any] = field(default_factory=dict)
    # what stood in `k` and `v` at `rows` before; None where that was not kept, as on a CPU: read
    # `cached` there
    replaced: Replaced | None = None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x `[m, kv_heads, head_dim]` rotated to `positions` `[m]`."""
        return self.rope.rotate(x, positions)


class ChunkLayer(NamedTuple):
    """A layer of a chunk that is computed by itself; of `LayerView` the fields of these names."""

    q: Tensor
    k: Tensor
    fresh_q: Tensor
    fresh_k: Tensor
    scale: float
    rule: AttentionRule = PLAIN


class ExtraBuilder(Protocol):
    """Makes the extra tensors of one chunk while its layers are computed."""

    def add(self, view: ChunkLayer) -> None: ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors as they are stored, on the host, after all layers."""


@dataclass(frozen=True)
class ChunkExtra:
    """Tensors that a method needs beside a chunk's KV, which are computed with it."""

    name: str
    version: int  # tensors of another are not read
    builder: Callable[[], ExtraBuilder]


@dataclass
class PrefillResult:
    """The logits of the first answer token, and the work that computing them took."""

    logits: Tensor  # `[vocabulary]` fp32
    observed: list[Tensor]  # per layer, the tensor that the eviction method's `observe` returned
    rows_per_layer: list[int]  # per layer, the number of rows whose attention was computed
    rows: Tensor  # prompt rows that were computed anew, question included
    flops: float
    layout: PromptLayout  # the prompt whose KV is in place now
    # indices of `layout`'s tokens in the original prompt; None if it is the original prompt (an
    # eviction method may start over with fewer tokens)
    kept_ids: Tensor | None = None
    # KV entries per layer and KV head; None if every token of `layout` has one
    entries_per_head: int | None = None
    # prompt rows of the entries of layers with a window, by layer, where not every token of
    # `layout` has one
    held: Mapping[int, Tensor] = field(default_factory=dict)
    coverage: float = 1.0  # share of the prompt's tokens whose KV is held by at least one layer
