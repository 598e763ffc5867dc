"""What a mixer keeps of a sequence, and what is stored of a document for it, with their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from kvstitch.service.worker.model import gated_delta
from kvstitch.service.worker.model.gated_delta import Map


class State(NamedTuple):
    """A mixer's state behind some rows of a sequence; never changed in place."""

    rows: Tensor  # inputs of the convolution that the next rows see `[rows, channels]`
    sums: Tensor  # fp32 `[heads, key, value]`


FIRST_ROWS = 4
"""Of a document, which can be computed anew with what stands before them, the others stored."""


class FirstRows(NamedTuple):
    """What each of a document's first rows makes of a state S: α S + β k (v − α Sᵀ k)ᵀ, as
    `gated_delta` says; α S + k vᵀ without β (`mamba2`)."""

    decay: Tensor  # log α `[m, heads]`
    k: Tensor  # `[m, groups, key]`, which heads of a group share
    v: Tensor  # `[m, heads, value]`
    beta: Tensor | None = None  # `[m, heads]`

    def of(self, state: Tensor | None) -> Tensor | None:
        """Return the state after these rows; None stands for the first state, 0."""
        m, heads, value = self.v.shape
        if not m or not heads:
            return state
        k = self.k.repeat_interleave(heads // self.k.shape[1], 1)
        if state is None:
            state = k.new_zeros(heads, k.shape[2], value)
        if self.beta is not None:
            return gated_delta.run(k, k, self.v, self.decay, self.beta, state)[1]
        summed = self.decay.cumsum(0)
        left = self.v * (summed[-1] - summed).exp()[..., None]
        faded = state * summed[-1].exp()[:, None, None]
        return torch.baddbmm(faded, k.permute(1, 2, 0), left.transpose(0, 1))

    def after(self, rows: int) -> FirstRows:
        """Return those that stand behind so many."""
        beta = None if self.beta is None else self.beta[rows:]
        return FirstRows(self.decay[rows:], self.k[rows:], self.v[rows:], beta)


class StoredState(NamedTuple):
    """What a document's rows make of any state before them."""

    rows: Tensor  # the last inputs of the convolution `[rows, channels]`
    first: FirstRows
    map: Map  # of the rows behind these
    tokens: int  # of the document, which may be shorter than what the convolution sees

    def behind(self, state: State | None) -> State:
        """Return the state behind these rows, where `state` is that before them."""
        rows, sums = (None, None) if state is None else state
        last = self.rows
        if self.tokens < len(last):
            before = torch.zeros_like(last) if rows is None else rows
            last = torch.cat([before[self.tokens :], last[len(last) - self.tokens :]])
        return State(last, self.map.of(self.first.of(sums)))

    def after(self, rows: int) -> StoredState:
        """Return what is stored of the rows behind the first, at most `FIRST_ROWS`."""
        return self._replace(first=self.first.after(rows), tokens=self.tokens - rows)


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
    groups: int  # of heads that share a key
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
        if not self.heads:
            return read
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
        total = self.rows * self.channels * dtype.itemsize + 4 * sum(map(prod, self._exact))
        for shape in self._rounded:
            size = prod(shape)
            raw = codec == "raw"
            total += size * dtype.itemsize if raw else size + prod(shape[:-1]) * _SCALE.itemsize
        return total

    @property
    def _exact(self) -> list[tuple[int, ...]]:
        """Shapes of what stays fp32: log decays of the first rows, and A or β."""
        each = (FIRST_ROWS, self.heads)
        return [each, (self.heads, 1, 1) if self.scalar else each]

    @property
    def _rounded(self) -> list[tuple[int, ...]]:
        """Shapes of the others: keys and values of the first rows, B, and A if it is no number."""
        state = (self.heads, self.key)
        shapes = [(FIRST_ROWS, self.groups, self.key), (FIRST_ROWS, self.heads, self.value)]
        return [*shapes, (*state, self.value), *([] if self.scalar else [(*state, self.key)])]

    def packed(self, stored: StoredState, dtype: torch.dtype, codec: str) -> Tensor:
        """Return the bytes of a stored state, uint8."""
        (decay, k, v, beta), (a, b) = stored.first, stored.map
        exact = [_padded(decay), a if beta is None else _padded(beta)]
        rounded = [_padded(k), _padded(v), b, *([] if self.scalar else [a])]
        parts = [stored.rows.to(dtype), *exact]
        if codec == "raw":
            parts += [x.to(dtype) for x in rounded]
        else:
            for x in rounded:
                # At least what fp16 holds, so that a row of 0 stays one.
                scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-7).to(_SCALE)
                parts += [scale, (x / scale.float()).round().clamp(-127, 127).to(torch.int8)]
        return torch.cat([_bytes(part) for part in parts])

    def unpacked(self, raw: Tensor, dtype: torch.dtype, codec: str, tokens: int) -> StoredState:
        """Return the stored state of so many tokens, of bytes that `packed` made."""
        rows, raw = _take(raw, (self.rows, self.channels), dtype)
        found: list[Tensor] = []
        for shape in self._exact:
            x, raw = _take(raw, shape, torch.float32)
            found.append(x)
        for shape in self._rounded:
            if codec == "raw":
                x, raw = _take(raw, shape, dtype)
            else:
                scale, raw = _take(raw, (*shape[:-1], 1), _SCALE)
                codes, raw = _take(raw, shape, torch.int8)
                x = codes.float() * scale.float()
            found.append(x.float())
        decay, a, k, v, b, *matrix = found
        beta = None if self.scalar else a[:tokens]
        first = FirstRows(decay[:tokens], k[:tokens], v[:tokens], beta)
        return StoredState(rows, first, Map(a if self.scalar else matrix[0], b), tokens)


_SCALE = torch.float16


def _padded(x: Tensor) -> Tensor:
    """Return `FIRST_ROWS` rows, with rows of 0 behind those of a short document."""
    return torch.cat([x, x.new_zeros(FIRST_ROWS - len(x), *x.shape[1:])])


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8).cpu()


def _take(raw: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a tensor at the start of bytes, and the bytes behind it."""
    size = dtype.itemsize
    for length in shape:
        size *= length
    # Copied, because bytes of a chunk may lie where no tensor of this type can.
    return raw[:size].clone().view(dtype).view(shape), raw[size:]
