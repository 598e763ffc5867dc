"""KV memory of the worker: one pool per layer; a sequence owns extents in it, per KV head.

    layer l:  k, v  [rows, head_dim]      row = one token of one KV head
    sequence: head h of layer l lives in rows [start[h], start[h] + capacity[h]), of which
              the first length[h] are filled. Before eviction the heads are equal and adjacent, so
              the layer reads as one tensor [kv_heads, capacity, head_dim].

After eviction lengths may differ by layer and head, and the rows given back are free at once.
Knows no model, no method, no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.extents import ExtentAllocator
from service.worker.kernels import memory


@dataclass
class LayerExtents:
    """Where one sequence's KV of one layer lies; lists are per KV head, in rows."""

    start: list[int]
    capacity: list[int]
    length: list[int]

    @property
    def uniform(self) -> bool:
        """Heads are adjacent and equally long: one strided tensor."""
        step = self.capacity[0]
        return (
            len(set(self.capacity)) == 1
            and len(set(self.length)) == 1
            and all(s == self.start[0] + h * step for h, s in enumerate(self.start))
        )


class KVPool:
    """`tokens` of KV for every layer: `2 · layers · kv_heads · tokens · head_dim` elements."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        tokens: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.kv_heads = kv_heads
        self.tokens = tokens
        shape = (kv_heads * tokens, head_dim)
        self.k = [memory.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.v = [memory.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self._allocators = [ExtentAllocator(shape[0]) for _ in range(layers)]

    @property
    def free_share(self) -> float:
        free = sum(a.free_rows for a in self._allocators)
        return free / max(1, sum(a.capacity for a in self._allocators))

    def can_reserve(self, tokens: int) -> bool:
        """Whether a sequence of `tokens` fits now, in every layer."""
        return all(a.largest >= tokens * self.kv_heads for a in self._allocators)

    def reserve(self, tokens: int) -> SequenceKV | None:
        """Extents of `tokens` per head in every layer, or None (nothing is taken then)."""
        if not self.can_reserve(tokens):
            return None
        layers = []
        for allocator in self._allocators:
            start = allocator.allocate(tokens * self.kv_heads)
            assert start is not None
            layers.append(_adjacent(start, [tokens] * self.kv_heads, [0] * self.kv_heads))
        return SequenceKV(self, layers)

    def _replace(self, layer: int, old: LayerExtents, capacity: Sequence[int]) -> int:
        """Free a layer's extents and take new, smaller ones; returns their start."""
        allocator = self._allocators[layer]
        self._free(layer, old)
        start = allocator.allocate(sum(capacity))
        assert start is not None, "what was just freed is at least as large"
        return start

    def _free(self, layer: int, extents: LayerExtents) -> None:
        for start, size in zip(extents.start, extents.capacity, strict=True):
            self._allocators[layer].free(start, size)


class SequenceKV:
    """One sequence's KV in the pool. `release` gives everything back (idempotent)."""

    def __init__(self, pool: KVPool, layers: list[LayerExtents]) -> None:
        self.pool = pool
        self.layers = layers

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Writable K, V `[kv_heads, tokens, head_dim]` for prefill; only before eviction."""
        extents = self.layers[layer]
        first, size, heads = extents.start[0], extents.capacity[0], len(extents.start)
        rows = slice(first, first + heads * size)
        shape = (heads, size, -1)
        k = self.pool.k[layer][rows].view(shape)[:, :tokens]
        v = self.pool.v[layer][rows].view(shape)[:, :tokens]
        return k, v

    def set_length(self, tokens: int) -> None:
        """Prefill filled the first `tokens` of every head of every layer."""
        for extents in self.layers:
            extents.length = [tokens] * len(extents.length)

    def append(self, layer: int, k: Tensor, v: Tensor) -> None:
        """One more token: k, v `[kv_heads, head_dim]`."""
        extents = self.layers[layer]
        assert all(n < c for n, c in zip(extents.length, extents.capacity, strict=True)), "full"
        pk, pv = self.pool.k[layer], self.pool.v[layer]
        at = [s + n for s, n in zip(extents.start, extents.length, strict=True)]
        if extents.uniform:
            rows = slice(at[0], at[-1] + 1, extents.capacity[0])
            pk[rows], pv[rows] = k, v
        else:
            index = torch.tensor(at, device=k.device)
            pk[index], pv[index] = k, v
        extents.length = [n + 1 for n in extents.length]

    def heads(self, layer: int) -> list[tuple[slice, Tensor, Tensor]]:
        """Filled K, V as `(kv heads, [heads, length, d], same)`: one entry if uniform, else one
        per KV head."""
        extents = self.layers[layer]
        if extents.uniform:
            k, v = self.prompt_layer(layer, extents.length[0])
            return [(slice(0, len(extents.start)), k, v)]
        out = []
        for h, (start, length) in enumerate(zip(extents.start, extents.length, strict=True)):
            rows = slice(start, start + length)
            pool = self.pool
            k, v = pool.k[layer][rows], pool.v[layer][rows]
            out.append((slice(h, h + 1), k.unsqueeze(0), v.unsqueeze(0)))
        return out

    def keep(self, layer: int, kept: Sequence[Tensor], room: int) -> None:
        """Keep only the tokens `kept[h]` (ascending indices into head h), with `room` for more.

        The rows given up are free for other sequences when this returns.
        """
        extents = self.layers[layer]
        gathered = [
            (self.pool.k[layer][start + index], self.pool.v[layer][start + index])
            for start, index in zip(extents.start, kept, strict=True)
        ]
        lengths = [len(index) for index in kept]
        capacity = [n + room for n in lengths]
        assert sum(capacity) <= sum(extents.capacity), "room exceeds what was reserved"
        first = self.pool._replace(layer, extents, capacity)
        fresh = _adjacent(first, capacity, lengths)
        for start, (k, v) in zip(fresh.start, gathered, strict=True):
            self.pool.k[layer][start : start + len(k)] = k
            self.pool.v[layer][start : start + len(v)] = v
        self.layers[layer] = fresh

    def kept_tokens(self, layer: int) -> float:
        """Filled entries of a layer, mean over KV heads."""
        lengths = self.layers[layer].length
        return sum(lengths) / len(lengths)

    def release(self) -> None:
        for layer, extents in enumerate(self.layers):
            self.pool._free(layer, extents)
        self.layers = []


def _adjacent(start: int, capacity: Sequence[int], length: Sequence[int]) -> LayerExtents:
    starts, at = [], start
    for size in capacity:
        starts.append(at)
        at += size
    return LayerExtents(starts, list(capacity), list(length))
