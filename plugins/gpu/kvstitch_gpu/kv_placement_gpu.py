"""Copies layers of stored segments to their places in a KV cache on a GPU, in Triton: one pass
decodes the values (codecs raw and int8), rotates the keys and lays them out by head. The result
equals decoding, rotating and copying in torch bit by bit, which is checked before the first use on
a device (`triton_support`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.worker.layout import to_device
from kvstitch_gpu import triton_support
from kvstitch_gpu.triton_support import tl

CODECS = ("raw", "int8")
ROWS = 32
# No fused multiply-add: it rounds once less than torch does, and results must be equal bit by bit.
OPTIONS = {"enable_fp_fusion": False}
# Numbers by which a program finds its rows: see `_programs`.
COLUMNS = 8


@dataclass(frozen=True)
class StagedSegment:
    """Where the stored rows of a segment lie, and where they go, at the first of some layers."""

    row: int  # of the prompt, where its first token goes
    tokens: int  # number of tokens
    scaled: bool  # whether they are int8 codes with scales, else values of the cache's dtype
    # of the keys `[tokens, kv_heads, head_dim]` before RoPE, in bytes from the buffer's start
    k: int
    v: int  # of the values
    k_scale: int = 0  # of the keys' scales fp16 `[tokens, kv_heads]`; 0 if there are none
    v_scale: int = 0  # of the values' scales
    layer: int = 0  # bytes from one layer to the next; even


@dataclass(frozen=True)
class Target:
    """Layers of a KV cache in one memory, all with the same strides."""

    k: Tensor  # keys after RoPE, of any shape; `v` are the values, with the same strides
    v: Tensor
    starts: Tensor  # of each layer, elements from the first of `k` to its first row, int64
    heads: int  # KV heads of a layer
    of_head: int  # elements from one head of a layer to the next
    of_row: int  # elements from one token of a head to the next

    @classmethod
    def of_layer(cls, k: Tensor, v: Tensor) -> Target:
        """Return a layer that lies alone, `[kv_heads, n, head_dim]`."""
        assert k.stride() == v.stride()
        starts = torch.zeros(1, dtype=torch.int64, device=k.device)
        return cls(k, v, starts, k.shape[0], k.stride(0), k.stride(1))


class Placement:
    """Staged segments in one buffer with the kernel's table of them; the same for every layer
    they fit."""

    def __init__(
        self, segments: Sequence[StagedSegment], itemsize: int, device: torch.device
    ) -> None:
        self.segments = tuple(segments)
        self.programs = {
            scaled: to_device(table, device)
            for scaled in (False, True)
            if len(table := _programs(self.segments, itemsize, scaled))
        }


def _programs(segments: Sequence[StagedSegment], itemsize: int, scaled: bool) -> Tensor:
    """Return a line for every `ROWS` rows: keys, values and their scales, each in elements from the
    buffer's start; first row in the segment; first row in the prompt; number of rows; elements of
    keys from one layer to the next."""
    size = 1 if scaled else itemsize
    lines = [
        (
            s.k // size, s.v // size, s.k_scale // 2, s.v_scale // 2,
            first, s.row + first, min(ROWS, s.tokens - first), s.layer // size,
        )
        for s in segments
        if s.scaled == scaled
        for first in range(0, s.tokens, ROWS)
    ]  # fmt: skip
    return torch.tensor(lines, dtype=torch.int64).view(-1, COLUMNS)


def supports(kv: Tensor) -> bool:
    """Return whether the kernel can write to a cache `[kv_heads, tokens, head_dim]` like this."""
    return triton_support.takes_heads(_kernel, kv) and is_verified(kv.device)


@triton_support.verified("placing stored rows", 0.0)
def is_verified(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    tokens, heads, d = 70, 2, 64
    frequencies = 10000.0 ** -(torch.arange(0, d, 2, device=device) / d)
    angles = torch.outer(torch.arange(500, dtype=torch.float32, device=device), frequencies)
    positions = torch.arange(250, 250 + 2 * tokens, device=device)
    k, v = torch.randn(2, tokens, heads, d, generator=random, device=device).bfloat16()
    codes = [(x.float() * 40).clamp(-127, 127).to(torch.int8) for x in (k, v)]
    scale = torch.rand(tokens, heads, generator=random, device=device).half()
    small_k, small_v = ((x.float() * scale.float().unsqueeze(-1)).bfloat16() for x in codes)
    parts = [x.flatten().view(torch.uint8) for x in (k, v, *codes, scale)]
    ends = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0).tolist()
    # The second layer is the same bytes once more.
    placement = Placement(
        [
            StagedSegment(0, tokens, False, ends[0], ends[1], layer=ends[-1]),
            StagedSegment(tokens, tokens, True, ends[2], ends[3], ends[4], ends[4], ends[-1]),
        ],
        k.itemsize,
        device,
    )
    ours = torch.empty(2, 2, heads, 2 * tokens, d, dtype=torch.bfloat16, device=device)
    starts = torch.arange(2, device=device) * ours.stride(1)
    target = Target(ours[0], ours[1], starts, heads, ours.stride(2), ours.stride(3))
    place(
        torch.cat([*parts, *parts]), placement, target, 2, positions=positions,
        cos=angles.cos(), sin=angles.sin(),
    )  # fmt: skip
    turned = _rotated(torch.cat([k, small_k]), angles[positions])
    theirs = torch.stack([turned, torch.cat([v, small_v])]).transpose(1, 2)
    return ours, theirs.unsqueeze(1).expand_as(ours)


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x `[tokens, heads, d]` turned by angles `[tokens, d / 2]`, as `model.rope` does it."""
    left, right = x.float().chunk(2, -1)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)


def place(
    staged: Tensor,
    placement: Placement,
    target: Target,
    layers: int = 1,
    *,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    staged_layer: int = 0,
    layer: int = 0,
) -> None:
    """Decode, rotate and copy `layers` layers of all staged segments (bytes, uint8), from
    `staged_layer` of the buffer and to `layer` of the target on; `positions` are those of the
    prompt's rows `[n]`."""
    half = cos.shape[1]
    scales = staged.view(torch.float16)
    for scaled, programs in placement.programs.items():
        _kernel[(len(programs), target.heads, layers)](
            staged.view(torch.int8 if scaled else target.k.dtype), scales, programs,
            positions, cos, sin, target.k, target.v, target.starts, target.of_head, target.of_row,
            staged_layer, layer,
            SCALED=scaled, HALF=half, WIDTH=1 << (half - 1).bit_length(), ROWS=ROWS,
            COLUMNS=COLUMNS, **OPTIONS,
        )  # fmt: skip


def _place_rows(
    values: tl.tensor, scales: tl.tensor, programs: tl.tensor, positions: tl.tensor,
    cos: tl.tensor, sin: tl.tensor, k_out: tl.tensor, v_out: tl.tensor, starts: tl.tensor,
    out_head: tl.tensor, out_row: tl.tensor, staged_layer: tl.tensor, layer: tl.tensor,
    SCALED: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    mine = programs + tl.program_id(0) * COLUMNS
    skipped = (staged_layer + tl.program_id(2)) * tl.load(mine + 7)
    k, v = values + tl.load(mine) + skipped, values + tl.load(mine + 1) + skipped
    # Scales are of two bytes, codes of one.
    k_scale = scales + tl.load(mine + 2) + skipped // 2
    v_scale = scales + tl.load(mine + 3) + skipped // 2
    start = tl.load(starts + layer + tl.program_id(2))
    number, width = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    row, into = tl.load(mine + 4) + number, tl.load(mine + 5) + number
    inside = number < tl.load(mine + 6)
    there = inside[:, None] & (width < HALF)[None, :]
    stored = (row * heads + head)[:, None] * (2 * HALF) + width[None, :]
    low = tl.load(k + stored, mask=there, other=0)
    high = tl.load(k + stored + HALF, mask=there, other=0)
    v_low = tl.load(v + stored, mask=there, other=0)
    v_high = tl.load(v + stored + HALF, mask=there, other=0)
    if SCALED:
        # Rounded to the cache's dtype first, as the codec does when it decodes.
        scale = tl.load(k_scale + row * heads + head, mask=inside, other=0.0).to(tl.float32)
        low = (low.to(tl.float32) * scale[:, None]).to(k_out.dtype.element_ty)
        high = (high.to(tl.float32) * scale[:, None]).to(k_out.dtype.element_ty)
        scale = tl.load(v_scale + row * heads + head, mask=inside, other=0.0).to(tl.float32)
        v_low = (v_low.to(tl.float32) * scale[:, None]).to(v_out.dtype.element_ty)
        v_high = (v_high.to(tl.float32) * scale[:, None]).to(v_out.dtype.element_ty)
    position = tl.load(positions + into, mask=inside, other=0)
    turn = position[:, None] * HALF + width[None, :]
    c = tl.load(cos + turn, mask=there, other=0.0)
    s = tl.load(sin + turn, mask=there, other=0.0)
    low, high = low.to(tl.float32), high.to(tl.float32)
    place = start + head * out_head + into[:, None] * out_row + width[None, :]
    tl.store(k_out + place, (low * c - high * s).to(k_out.dtype.element_ty), mask=there)
    tl.store(k_out + place + HALF, (high * c + low * s).to(k_out.dtype.element_ty), mask=there)
    tl.store(v_out + place, v_low.to(v_out.dtype.element_ty), mask=there)
    tl.store(v_out + place + HALF, v_high.to(v_out.dtype.element_ty), mask=there)


_kernel = triton_support.jit(_place_rows, "staged_layer", "layer")
