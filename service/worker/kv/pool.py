"""The pool of KV memory that sequences share: per layer, one array of rows for keys and values.

    layer l:  k, v  [rows, head_dim]      row = one token of one KV head
    sequence: head h of layer l owns rows start[l, h] .. start[l, h] + capacity[l, h], of which the
              first length[l, h] are filled. Before eviction the heads are equally long and
              adjacent, so a layer can be viewed as one tensor [kv_heads, capacity, head_dim].

Eviction may leave different lengths in each layer and head; the rows it gives up are free at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu.weight import zeros_in_huge_pages
from kvstitch.service.worker.kv.extents import ExtentAllocator


class KVPool:
    """Memory for `tokens` tokens: `2 * layers * kv_heads * tokens * head_dim` elements.

    Attributes:
        spare: index of a row in every layer that belongs to no sequence; unused places of a padded
            batch write there.
        k: keys after RoPE, for each layer `[rows, head_dim]`; `v` are the values.
        all_k: keys of all layers, of which `k` are the parts `[layers, rows, head_dim]`; `all_v`
            are the values.
        on_full: makes room for a sequence of so many tokens, where memory is only lent; False if it
            cannot.
    """

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
        shape = (layers, self.spare + 1, head_dim)
        self.all_k = zeros_in_huge_pages(shape, dtype=dtype, device=device)
        self.all_v = zeros_in_huge_pages(shape, dtype=dtype, device=device)
        self.k, self.v = list(self.all_k.unbind()), list(self.all_v.unbind())
        self._allocators = [ExtentAllocator(self.spare) for _ in range(layers)]
        self.on_full: Callable[[int], bool] | None = None

    @property
    def free_share(self) -> float:
        """Share of the rows that is free, 0 to 1."""
        free = sum(a.free_rows for a in self._allocators)
        return free / max(1, sum(a.capacity for a in self._allocators))

    @property
    def free_tokens(self) -> int:
        """Tokens that are free in every layer, wherever they lie."""
        return min(a.free_rows for a in self._allocators) // self.kv_heads

    def can_reserve(self, tokens: int) -> bool:
        """Return whether a sequence of `tokens` tokens fits now, in every layer."""
        return all(a.largest >= tokens * self.kv_heads for a in self._allocators)

    def make_room(self, tokens: int) -> bool:
        """Return whether `tokens` tokens fit, after lent memory was given back for them."""
        return self.can_reserve(tokens) or (self.on_full is not None and self.on_full(tokens))

    def reserve(self, tokens: int) -> SequenceKV | None:
        """Take memory for one sequence of `tokens` tokens, or None if it does not fit now."""
        if not self.make_room(tokens):
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
        """Write k and v `[m, head_dim]` to `rows` `[m]` of a layer."""
        self.k[layer].index_copy_(0, rows, k)
        self.v[layer].index_copy_(0, rows, v)

    def _replace(self, layer: int, start: Tensor, old: Tensor, new: Sequence[int]) -> int:
        """Free a layer's extents and take smaller ones; return the start of the first."""
        allocator = self._allocators[layer]
        self._free(layer, start, old)
        first = allocator.allocate(sum(new))
        assert first is not None, "what was just freed is at least as large"
        return first

    def _free(self, layer: int, start: Tensor, capacity: Tensor) -> None:
        for first, size in zip(start.tolist(), capacity.tolist(), strict=True):
            self._allocators[layer].free(first, size)


States = dict[int, Any]  # by the index of the mixer; what they are is the model's matter


@dataclass
class SequenceStates:
    """States of a sequence's mixers, of models that have some, by the index of the mixer. States
    are never changed in place, so what is kept of them costs no copy."""

    live: States = field(default_factory=dict)  # behind the tokens that are in place
    marks: dict[int, States] = field(default_factory=dict)  # behind so many first tokens

    def resumable(self, tokens: int, filled: int) -> int:
        """Return behind how many of the first `tokens` tokens, of `filled`, one can go on."""
        known = [*self.marks, *([filled] if self.live else [])]
        return tokens if not known else max((n for n in known if n <= tokens), default=0)

    def at(self, tokens: int) -> SequenceStates:
        """Return the states behind so many tokens, which `resumable` returned."""
        return SequenceStates(dict(self.marks.get(tokens, self.live)))


class SequenceKV:
    def __init__(self, pool: KVPool, start: Tensor, capacity: Tensor) -> None:
        self.pool = pool
        self.start = start  # first row of every extent, `[layers, kv_heads]` int64 in host memory
        self.capacity = capacity  # rows of every extent, like `start`
        self.length = torch.zeros_like(start)  # filled rows of every extent, like `start`
        # by layer that is known not to hold every token of the prompt: for each KV head the
        # positions of its entries, ascending; and the prompt's tokens
        self.positions: dict[int, tuple[list[Tensor], int]] = {}
        self.states = SequenceStates()
        self._views: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._released = False

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return views of K and V `[kv_heads, tokens, head_dim]`; only before eviction."""
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

    def first_rows(self) -> list[int]:
        """Return where each layer begins in `pool.all_k`, in rows; only before eviction."""
        rows = self.pool.all_k.shape[1]
        return [layer * rows + start for layer, start in enumerate(self.start[:, 0].tolist())]

    def set_length(self, tokens: int) -> None:
        """Record that prefill filled the first `tokens` rows of every extent."""
        self.length.fill_(tokens)

    def grow(self) -> None:
        """Make every extent one row longer; the caller writes these rows next."""
        assert bool((self.length < self.capacity).all()), "full"
        self.length += 1

    def shrink(self, tokens: int) -> None:
        """Give up the last rows of every extent, for the next tokens to overwrite."""
        self.length -= tokens

    @property
    def filled_tokens(self) -> int:
        """Tokens in place; only before eviction, when all extents are equally long."""
        return int(self.length[0, 0])

    @property
    def reserved_tokens(self) -> int:
        """Tokens that there is room for; only before eviction."""
        return int(self.capacity[0, 0])

    def copy_to(self, other: SequenceKV, tokens: int) -> None:
        """Copy the first `tokens` tokens to another sequence; only before eviction of either."""
        filled = self.filled_tokens
        other.states = self.states.at(tokens)
        for layer in range(len(self.start)):
            for target, source in zip(
                other.prompt_layer(layer, tokens), self.prompt_layer(layer, filled), strict=True
            ):
                target.copy_(source[:, :tokens])

    def keep(self, layer: int, kept: Sequence[Tensor], room: int) -> None:
        """Evict all but the tokens `kept` of each KV head (ascending indices into its extent),
        and reserve `room` rows behind them; the rows given up are free when this returns."""
        self._views.clear()
        arrays = self.pool.k[layer], self.pool.v[layer]
        old_start, old_capacity = self.start[layer], self.capacity[layer]
        gathered = [
            [array[start + index] for array in arrays]
            for start, index in zip(old_start.tolist(), kept, strict=True)
        ]
        lengths = [len(index) for index in kept]
        capacity = [n + room for n in lengths]
        assert sum(capacity) <= int(old_capacity.sum()), "room exceeds what was reserved"
        start = self.pool._replace(layer, old_start, old_capacity, capacity)
        starts = list(accumulate(capacity[:-1], initial=start))
        for first, n, parts in zip(starts, lengths, gathered, strict=True):
            for array, part in zip(arrays, parts, strict=True):
                array[first : first + n] = part
        self.start[layer] = torch.tensor(starts)
        self.capacity[layer] = torch.tensor(capacity)
        self.length[layer] = torch.tensor(lengths)

    def remember(self, layer: int, positions: Sequence[Tensor], tokens: int) -> None:
        """Say which positions each KV head of a layer holds, ascending, where it lacks some."""
        self.positions[layer] = [p.cpu() for p in positions], tokens

    def runs(self, position: int, windows: Sequence[int | None] = ()) -> tuple[Tensor, Tensor]:
        """Return first row and number of rows, each `[layers, kv_heads]`, of the entries that
        the token at `position` sees, by every layer's window (None: all). Entries are in the
        order of their positions, so those within a window are the last ones."""
        # Tokens before the window: as many entries, where a layer holds every token.
        outside = [0 if w is None else max(0, position + 1 - w) for w in windows]
        if not any(outside):
            return self.start, self.length.clone()
        skipped = torch.tensor(outside)[:, None].repeat(1, self.pool.kv_heads)
        for layer in self.positions:
            if outside[layer]:
                skipped[layer] = self._up_to(layer, outside[layer] - 1)
        return self.start + skipped, self.length - skipped

    def _up_to(self, layer: int, position: int) -> Tensor:
        """Return the number of each head's entries at positions up to this one `[kv_heads]`."""
        positions, tokens = self.positions[layer]
        answered = max(0, position + 1 - tokens)
        return torch.tensor([int((p <= position).sum()) + answered for p in positions])

    def kept_tokens(self, layer: int) -> float:
        """Return the filled rows of a layer, mean over KV heads."""
        return float(self.length[layer].double().mean())

    def release(self) -> None:
        """Give all rows back. May be called more than once."""
        if self._released:
            return
        self._released = True
        self._views.clear()
        self.states = SequenceStates()
        for layer in range(len(self.start)):
            self.pool._free(layer, self.start[layer], self.capacity[layer])
        # New tensors: these ones may be inference tensors, and this may be called outside of it.
        self.capacity = torch.zeros_like(self.capacity)
        self.length = torch.zeros_like(self.length)
