"""What a mixer keeps of a sequence, and what is stored of a document for it, with their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kvstitch.service.worker.model.gated_delta import Map


class State(NamedTuple):
    """A mixer's state behind some rows of a sequence; never changed in place."""

    rows: Tensor  # inputs of the convolution that the next rows see `[rows, channels]`
    sums: Tensor  # fp32 `[heads, key, value]`


class StoredState(NamedTuple):
    """What a document's rows make of any state before them."""

    rows: Tensor  # the last inputs of the convolution `[rows, channels]`
    map: Map
    own: int  # how many of these are the document's, which may be shorter

    def behind(self, state: State | None) -> State:
        """Return the state behind these rows, where `state` is that before them."""
        rows, sums = (None, None) if state is None else state
        last = self.rows
        if self.own < len(last):
            before = torch.zeros_like(last) if rows is None else rows
            last = torch.cat([before[self.own :], last[len(last) - self.own :]])
        return State(last, self.map.of(sums))


States = dict[int, State]
"""By the index of the mixer."""


@dataclass(frozen=True)
class MixerShape:
    """Sizes of the mixers of a model; those that are convolutions alone have no heads."""

    heads: int
    key: int
    value: int
    rows: int  # before a row that its convolution sees
    channels: int  # of the convolution
    scalar: bool = False  # whether a mapping's A is a number a head (Mamba-2)

    def first(self, like: Tensor) -> State:
        """Return the state before the first row."""
        return State(
            like.new_zeros(self.rows, self.channels),
            torch.zeros(self.heads, self.key, self.value, device=like.device),
        )

    def apart(self, sums: Tensor) -> Tensor:
        """Return the state 0 that shows what rows make of any state, `sums` among them, in columns
        behind its own."""
        zeros = torch.zeros_like(sums)
        if self.scalar:
            return torch.cat([zeros, sums, torch.ones_like(sums[..., :1])], -1)
        eye = torch.eye(self.key, device=sums.device).expand(self.heads, -1, -1)
        return torch.cat([zeros, eye], -1)

    def joined(self, read: Tensor, sums: Tensor) -> Tensor:
        """Return what rows behind the state `sums` read, `[m, heads, value]`, of what they read of
        `apart`."""
        own, others = read[..., : self.value], read[..., self.value :]
        if self.scalar:
            return own + others[..., : self.value]
        return own + torch.einsum("mhk,hkv->mhv", others, sums)

    def mapped(self, sums: Tensor) -> Map:
        """Return what rows make of any state, of what they made of `apart`."""
        a = sums[..., :1, -1:] if self.scalar else sums[..., self.value :]
        return Map(a.contiguous(), sums[..., : self.value].contiguous())

    def nbytes(self, dtype: torch.dtype, codec: str) -> int:
        """Return bytes of a stored state: as it is for the codec raw; in int8, with a scale for
        each row of a head, for others. Numbers a head stay fp32."""
        convolution = self.rows * self.channels * dtype.itemsize
        each = [w * dtype.itemsize if codec == "raw" else w + _SCALE.itemsize for w in self._widths]
        return convolution + self.heads * (4 * self.scalar + self.key * sum(each))

    @property
    def _widths(self) -> tuple[int, ...]:
        return (self.value,) if self.scalar else (self.key, self.value)

    def packed(self, stored: StoredState, dtype: torch.dtype, codec: str) -> Tensor:
        """Return the bytes of a stored state, uint8."""
        both = list(stored.map)
        parts = [stored.rows.to(dtype)]
        if self.scalar:
            parts.append(both.pop(0))
        if codec == "raw":
            parts += [x.to(dtype) for x in both]
        else:
            for x in both:
                # At least what fp16 holds, so that a row of 0 stays one.
                scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-7).to(_SCALE)
                parts += [scale, (x / scale.float()).round().clamp(-127, 127).to(torch.int8)]
        return torch.cat([_bytes(part) for part in parts])

    def unpacked(self, raw: Tensor, dtype: torch.dtype, codec: str, tokens: int) -> StoredState:
        """Return the stored state of so many tokens, of bytes that `packed` made."""
        rows, raw = _take(raw, (self.rows, self.channels), dtype)
        both: list[Tensor] = []
        if self.scalar:
            x, raw = _take(raw, (self.heads, 1, 1), torch.float32)
            both.append(x)
        for width in self._widths:
            shape = (self.heads, self.key, width)
            if codec == "raw":
                x, raw = _take(raw, shape, dtype)
            else:
                scale, raw = _take(raw, (*shape[:2], 1), _SCALE)
                codes, raw = _take(raw, shape, torch.int8)
                x = codes.float() * scale.float()
            both.append(x.float())
        return StoredState(rows, Map(both[0], both[1]), min(tokens, self.rows))


_SCALE = torch.float16


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8).cpu()


def _take(raw: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a tensor at the start of bytes, and the bytes behind it."""
    size = dtype.itemsize
    for length in shape:
        size *= length
    # Copied, because bytes of a chunk may lie where no tensor of this type can.
    return raw[:size].clone().view(dtype).view(shape), raw[size:]
