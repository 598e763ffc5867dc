"""What recordings of layers are for, what they read and write, and how a prompt is written there.

numbers     ids [M] ‖ positions [M] ‖ per layer where the prompt lies in the pool
            ‖ runs of the last layer [2, kv_heads] ‖ place of the last row
            ‖ programs of the shift [P, 4] ‖ places of its probes [M]            one upload
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.worker.kv.pool import SequenceKV
from kvstitch.service.worker.layout import to_device
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch_gpu import shift_gpu
from kvstitch_gpu.index_causal_attention import EXTENT
from kvstitch_gpu.shift_gpu import KernelShift, ShiftPlan
from kvstitch_gpu.transfers import GROUPS

MAX_ROWS = 3072
"""More rows are computed in several tiles, and take far longer to compute than to launch."""
FEW_ROWS = 512
"""Up to here rows cost less than launches, and recordings are for coarser numbers of them."""
MIN_KEYS = 2048
"""Smallest number of keys that is recorded for; larger ones are powers of two."""


@dataclass(frozen=True)
class Shape:
    """What a recording is for: how many rows of which layers, cut into groups of layers."""

    rows: int
    first: int
    stop: int
    keys: int
    scored: range = range(0)
    every: bool = False
    from_attention: bool = False
    shifted: bool = False
    answers: bool = False
    copied_from: int = 0

    @property
    def groups(self) -> list[range]:
        """The layers that are replayed at once."""
        start = max(self.first + self.from_attention, self.copied_from)
        ends = [group.stop for group in layer_groups(self.copied_from, self.stop)]
        ends = [end for end in ends if end > start] or [self.stop]
        return [
            range(first, end) for first, end in zip([self.first, *ends[:-1]], ends, strict=True)
        ]

    def is_finished(self, layer: int) -> bool:
        """Return whether a layer is computed to its end, and not only to its scores."""
        return not len(self.scored) or layer + 1 < self.stop


def bucket(rows: int) -> int | None:
    """Return how many rows are computed instead of so many: 8, 10, 12, 14, 16, 20, 24, ..."""
    if rows > MAX_ROWS:
        return None
    steps = 3 if rows <= FEW_ROWS else 5
    step = max(2, 1 << (max(rows, 1) - 1).bit_length() >> steps)
    padded = max(8, -(-rows // step) * step)
    return None if 3 * padded > 4 * rows else padded


def key_bucket(tokens: int) -> int:
    """Return how many keys are recorded for instead of so many."""
    return max(MIN_KEYS, 1 << (tokens - 1).bit_length())


def layer_groups(first: int, stop: int) -> list[range]:
    """Cut layers as they are copied to the device, if all have arrived."""
    groups: list[range] = []
    while first < stop:
        size = GROUPS[min(len(groups), len(GROUPS) - 1)]
        groups.append(range(first, min(first + size, stop)))
        first += size
    return groups


SHIFTED_DOCUMENTS = 64
"""Documents that a recorded shift has room for, beside one program for every block of keys."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a prompt gives its recordings."""

    rows: Tensor  # that are computed, in host memory, ascending `[m]`
    tokens: int  # of the prompt
    ids: Tensor | None = None  # of the rows, in host memory `[m]`, for shapes from layer 0 on
    x: Tensor | None = None  # hidden states of the rows before the first layer, for all others
    # queries of the rows after RoPE `[m, heads, head_dim]`, for shapes `from_attention`
    q: Tensor | None = None
    weights: Tensor | None = None  # of the rows' attention in scores `[m]`, for shapes with any
    shift: KernelShift | None = None  # for shapes that are `shifted`


@dataclass(frozen=True)
class Tensors:
    """What a shape's recordings read and write, on the device."""

    shape: Shape
    layers: int
    kv_heads: int
    numbers: Tensor
    x: Tensor
    q: Tensor
    weights: Tensor
    scores: Tensor
    moved: Tensor
    logits: Tensor

    @classmethod
    def of(cls, shape: Shape, decoder: DecoderModel) -> Tensors:
        """Return tensors of zeros for the recordings of a shape."""
        heads, device, dtype = decoder.kv_heads, decoder.device, decoder.dtype
        numbers = 3 * shape.rows + EXTENT * decoder.layers + 2 * heads + 1
        numbers += shift_gpu.COLUMNS * _programs(shape)
        of_queries = shape.rows * shape.from_attention, decoder.heads, decoder.head_dim
        return cls(
            shape,
            decoder.layers,
            heads,
            torch.zeros(numbers, dtype=torch.int64, device=device),
            torch.zeros(shape.rows, decoder.hidden, dtype=dtype, device=device),
            torch.zeros(of_queries, dtype=dtype, device=device),
            torch.zeros(shape.rows, device=device),
            torch.zeros(len(shape.scored), heads, shape.keys, device=device),
            torch.zeros(shape.keys * shape.shifted, dtype=dtype, device=device),
            torch.zeros(int(shape.answers), decoder.vocabulary, device=device),
        )

    @property
    def ids(self) -> Tensor:
        return self.numbers[: self.shape.rows]

    @property
    def positions(self) -> Tensor:
        return self.numbers[self.shape.rows : 2 * self.shape.rows]

    def extent(self, layer: int) -> Tensor:
        """Return where the prompt lies in a layer of the pool (`EXTENT`)."""
        return self.numbers[2 * self.shape.rows + EXTENT * layer :][:EXTENT]

    @property
    def _behind_extents(self) -> Tensor:
        return self.numbers[2 * self.shape.rows + EXTENT * self.layers :]

    @property
    def runs(self) -> Tensor:
        """First row and number of rows of every KV head that the last row sees `[2, kv_heads]`."""
        return self._behind_extents[: 2 * self.kv_heads].view(2, -1)

    @property
    def last(self) -> Tensor:
        """The place of the last row among those given `[1]`."""
        return self._behind_extents[2 * self.kv_heads :][:1]

    @property
    def shift(self) -> ShiftPlan:
        programs = self._behind_extents[2 * self.kv_heads + 1 :]
        return ShiftPlan(programs, _programs(self.shape), self.moved, 0)

    def fill(self, kv: SequenceKV, given: Given) -> None:
        """Write a prompt, of which as many rows or fewer are computed."""
        shape, count, d = self.shape, len(given.rows), kv.pool.k[0].shape[1]
        numbers = torch.zeros(len(self.numbers), dtype=torch.int64)
        host = Tensors(shape, self.layers, self.kv_heads, numbers, *(numbers[:0] for _ in range(6)))
        if given.ids is not None:
            host.ids[:count] = given.ids
        host.positions[:count] = given.rows
        start = numbers[2 * shape.rows :]
        extents = start[: EXTENT * self.layers].view(-1, EXTENT)
        extents[:, 0], extents[:, 1] = kv.start[:, 0] * d, kv.capacity[:, 0] * d
        extents[:, 2], extents[:, 3] = given.tokens, count
        host.runs[0], host.runs[1] = kv.start[-1], given.rows[-1] + 1
        host.last[0] = count - 1
        if given.shift is not None:
            lines, places = given.shift.lines, given.shift.places
            programs = host.shift.programs
            programs[: lines.numel()] = lines.flatten()
            programs[len(programs) - shape.rows :][: len(places)] = places
            moved = torch.zeros(shape.keys, dtype=self.moved.dtype)
            moved[: given.tokens] = given.shift.moved * given.shift.weight
            self.moved.copy_(to_device(moved, self.moved.device))
        self.numbers.copy_(_pinned(numbers, self.numbers.device), non_blocking=True)
        for ours, theirs in ((self.x, given.x), (self.q, given.q), (self.weights, given.weights)):
            if theirs is not None:
                ours[:count].copy_(theirs)


def has_room(shape: Shape, shift: KernelShift) -> bool:
    """Return whether a shift fits recordings of this shape."""
    return len(shift.lines) <= _programs(shape)


def _programs(shape: Shape) -> int:
    """Return how many programs shift at a layer, most of them perhaps nothing."""
    return shape.shifted * (shape.keys // shift_gpu.ROWS + SHIFTED_DOCUMENTS)


def _pinned(x: Tensor, device: torch.device) -> Tensor:
    return x if x.device == device else x.pin_memory()
