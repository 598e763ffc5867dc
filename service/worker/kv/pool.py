"""KV memory of the worker: one pool per layer; a sequence owns extents in it, per KV head.

    layer l:  k, v  [rows, head_dim]      row = one token of one KV head
    sequence: head h of layer l lives in rows [start[l, h], start[l, h] + capacity[l, h]), of
              which the first length[l, h] are filled. Before eviction the heads are equal and
              adjacent, so a layer reads as one tensor [kv_heads, capacity, head_dim].

After eviction lengths may differ by layer and head, and the rows given back are free at once.
Knows no model, no method, no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from service.worker.kernels.cpu import huge_pages
from service.worker.kv.extents import ExtentAllocator


class KVPool:
    """`tokens` of KV for every layer: `2 · layers · kv_heads · tokens · head_dim` elements.

    spare: a row of every layer that belongs to no sequence; anybody may write it."""

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
        self.spare = kv_heads * tokens
        shape = (self.spare + 1, head_dim)
        self.k = [huge_pages.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.v = [huge_pages.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self._allocators = [ExtentAllocator(self.spare) for _ in range(layers)]

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
        first = []
        for allocator in self._allocators:
            start = allocator.allocate(tokens * self.kv_heads)
            assert start is not None
            first.append(start)
        heads = torch.arange(self.kv_heads) * tokens
        starts = torch.tensor(first)[:, None] + heads
        return SequenceKV(self, starts, torch.full_like(starts, tokens))

    def write(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """k, v `[m, head_dim]` into `rows` `[m]` of a layer."""
        self.k[layer].index_copy_(0, rows, k)
        self.v[layer].index_copy_(0, rows, v)

    def _replace(self, layer: int, start: Tensor, old: Tensor, new: Sequence[int]) -> int:
        """Free a layer's extents and take new, smaller ones; returns the first one's start."""
        allocator = self._allocators[layer]
        self._free(layer, start, old)
        first = allocator.allocate(sum(new))
        assert first is not None, "what was just freed is at least as large"
        return first

    def _free(self, layer: int, start: Tensor, capacity: Tensor) -> None:
        for first, size in zip(start.tolist(), capacity.tolist(), strict=True):
            self._allocators[layer].free(first, size)


class SequenceKV:
    """One sequence's KV in the pool: start, capacity, length `[layers, kv_heads]` int64 in host
    memory, in rows. `release` gives everything back (idempotent)."""

    def __init__(self, pool: KVPool, start: Tensor, capacity: Tensor) -> None:
        self.pool = pool
        self.start = start
        self.capacity = capacity
        self.length = torch.zeros_like(start)
        self._views: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Writable K, V `[kv_heads, tokens, head_dim]` for prefill; only before eviction."""
        if (known := self._views.get((layer, tokens))) is not None:
            return known
        first, size = int(self.start[layer, 0]), int(self.capacity[layer, 0])
        k, v = self.pool.k[layer], self.pool.v[layer]
        shape, strides = (
            (self.pool.kv_heads, tokens, k.shape[1]),
            (size * k.shape[1], k.shape[1], 1),
        )
        at = k.storage_offset() + first * k.shape[1], v.storage_offset() + first * v.shape[1]
        views = k.as_strided(shape, strides, at[0]), v.as_strided(shape, strides, at[1])
        self._views[layer, tokens] = views
        return views

    def set_length(self, tokens: int) -> None:
        """Prefill filled the first `tokens` of every head of every layer."""
        self.length.fill_(tokens)

    def grow(self) -> None:
        """Every head of every layer is one entry longer: the last one is to be written now."""
        assert bool((self.length < self.capacity).all()), "full"
        self.length += 1

    def keep(self, layer: int, kept: Sequence[Tensor], room: int) -> None:
        """Keep only the tokens `kept[h]` (ascending indices into head h), with `room` for more.

        The rows given up are free for other sequences when this returns.
        """
        self._views.clear()
        stores = self.pool.k[layer], self.pool.v[layer]
        old_start, old_capacity = self.start[layer], self.capacity[layer]
        gathered = [
            [store[start + index] for store in stores]
            for start, index in zip(old_start.tolist(), kept, strict=True)
        ]
        lengths = [len(index) for index in kept]
        capacity = [n + room for n in lengths]
        assert sum(capacity) <= int(old_capacity.sum()), "room exceeds what was reserved"
        start = self.pool._replace(layer, old_start, old_capacity, capacity)
        starts = list(accumulate(capacity[:-1], initial=start))
        for first, n, parts in zip(starts, lengths, gathered, strict=True):
            for store, part in zip(stores, parts, strict=True):
                store[first : first + n] = part
        self.start[layer] = torch.tensor(starts)
        self.capacity[layer] = torch.tensor(capacity)
        self.length[layer] = torch.tensor(lengths)

    def kept_tokens(self, layer: int) -> float:
        """Filled entries of a layer, mean over KV heads."""
        return float(self.length[layer].double().mean())

    def release(self) -> None:
        self._views.clear()
        for layer in range(len(self.start)):
            self.pool._free(layer, self.start[layer], self.capacity[layer])
        self.capacity.zero_()
        self.length.zero_()
