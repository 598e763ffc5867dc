"""Copies a layer of a stored segment to its place in a KV cache on a GPU, in Triton, in one pass.

The pass decodes the stored values, rotates the keys to their positions and lays them out by head,
for which torch takes a dozen passes. It reads what the codecs raw and int8 store
(`kvstore.format.codecs`). The result equals decoding, rotating (`service.worker.model.rope`) and
copying in torch bit by bit, so an answer does not depend on which way was taken. Before its first
use on a device the kernel is compared with exactly that (`triton_support`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.gpu import triton_support
from service.worker.kernels.gpu.triton_support import tl

CODECS = ("raw", "int8")
ROWS = 32
# No fused multiply-add: it rounds once less than torch does, and results must be equal bit by bit.
OPTIONS = {"enable_fp_fusion": False}
MAX_HEAD_DIM = 256


def supports(kv: Tensor) -> bool:
    """Whether the kernel can write to a cache `[kv_heads, tokens, head_dim]` like this."""
    on_gpu = _kernel is not None and kv.device.type == "cuda"
    fits = (
        kv.dtype in triton_support.HALF_PRECISION
        and kv.shape[2] <= MAX_HEAD_DIM
        and kv.stride(2) == 1
    )
    return on_gpu and fits and is_verified(kv.device)


@cache
def is_verified(device: torch.device) -> bool:
    """Whether the kernel compiles on this device and gives what torch gives, bit by bit."""
    return triton_support.matches_torch("placing stored rows", lambda: _compared(device), 0.0)


def _compared(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    tokens, heads, d = 70, 2, 64
    frequencies = 10000.0 ** -(torch.arange(0, d, 2, device=device) / d)
    angles = torch.outer(torch.arange(500, dtype=torch.float32, device=device), frequencies)
    positions = torch.arange(400, 400 + tokens, device=device)
    where = {"positions": positions, "cos": angles.cos(), "sin": angles.sin()}
    k, v = torch.randn(2, tokens, heads, d, generator=random, device=device).bfloat16()
    codes = [(x.float() * 40).clamp(-127, 127).to(torch.int8) for x in (k, v)]
    scale = torch.rand(tokens, heads, generator=random, device=device).half()
    small_k, small_v = ((x.float() * scale.float().unsqueeze(-1)).bfloat16() for x in codes)
    ours = torch.empty(2, 2, heads, tokens, d, dtype=torch.bfloat16, device=device)
    place((k,), (v,), **where, k_out=ours[0, 0], v_out=ours[0, 1])
    place((codes[0], scale), (codes[1], scale), **where, k_out=ours[1, 0], v_out=ours[1, 1])
    turned, small_turned = (_rotated(x, angles[positions]) for x in (k, small_k))
    theirs = torch.stack([turned, v, small_turned, small_v]).transpose(1, 2)
    return ours.flatten(0, 1), theirs


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x `[tokens, heads, d]` turned by angles `[tokens, d / 2]`, as `model.rope` does it."""
    left, right = x.float().chunk(2, -1)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)


def place(
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    *,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_out: Tensor,
    v_out: Tensor,
) -> None:
    """Decodes, rotates and copies one layer of one segment.

    Args:
        k: keys before RoPE as stored, contiguous: `(x,)` with x `[tokens, kv_heads, head_dim]`, or
            `(codes, scales)` with int8 codes of that shape and fp16 scales `[tokens, kv_heads]`.
        v: values as stored, like `k`.
        positions: of the tokens, `[tokens]`.
        cos: table `[max_positions, head_dim / 2]` fp32.
        sin: table like `cos`.
        k_out: where the keys go, `[kv_heads, tokens, head_dim]`.
        v_out: where the values go; same strides as `k_out`.
    """
    assert k_out.stride() == v_out.stride()
    scaled = len(k) == 2
    tokens, heads, d = k[0].shape
    half = d // 2
    _kernel[(-(-tokens // ROWS), heads)](
        k[0], v[0], k[-1], v[-1], positions, cos, sin, k_out, v_out, tokens,
        k_out.stride(0), k_out.stride(1),
        SCALED=scaled, HALF=half, WIDTH=1 << (half - 1).bit_length(), ROWS=ROWS, **OPTIONS,
    )  # fmt: skip


def _place_rows(
    k: tl.tensor, v: tl.tensor, k_scale: tl.tensor, v_scale: tl.tensor, positions: tl.tensor,
    cos: tl.tensor, sin: tl.tensor, k_out: tl.tensor, v_out: tl.tensor, tokens: tl.tensor,
    out_head: tl.tensor, out_row: tl.tensor, SCALED: tl.constexpr, HALF: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    row, width = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = row < tokens
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
    position = tl.load(positions + row, mask=inside, other=0)
    turn = position[:, None] * HALF + width[None, :]
    c = tl.load(cos + turn, mask=there, other=0.0)
    s = tl.load(sin + turn, mask=there, other=0.0)
    low, high = low.to(tl.float32), high.to(tl.float32)
    place = head * out_head + row[:, None] * out_row + width[None, :]
    tl.store(k_out + place, (low * c - high * s).to(k_out.dtype.element_ty), mask=there)
    tl.store(k_out + place + HALF, (high * c + low * s).to(k_out.dtype.element_ty), mask=there)
    tl.store(v_out + place, v_low.to(v_out.dtype.element_ty), mask=there)
    tl.store(v_out + place + HALF, v_high.to(v_out.dtype.element_ty), mask=there)


_kernel = triton_support.jit(_place_rows, "tokens", "positions", "k_scale", "v_scale")
