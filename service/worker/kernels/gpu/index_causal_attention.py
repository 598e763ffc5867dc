"""Attention of rows at scattered positions on a GPU, in Triton, without a mask in memory.

Index-causal: a row sees the keys up to its own position in the sequence. One program takes a tile
of rows of one query head and reads keys up to the position of its last row, so it skips the keys
that no row of the tile sees. The reference is `service.worker.model.attention`. Before its first
use on a device the kernel is compared with torch's attention (`triton_support`).
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.gpu import triton_support
from service.worker.kernels.gpu.triton_support import tl

ROWS, KEYS = 64, 64
OPTIONS = {"enable_fp_fusion": True}
EXTENT = 4
"""Numbers by which a recorded kernel finds a prompt in a layer of the KV pool: elements from the
layer's first to the prompt's first key, and from one head to the next; tokens of the prompt; rows
that are given. Rows behind these, which fill up a recording, see nothing and write nothing."""
# Allowed difference in the check before the first use: one bfloat16 rounding of values near 1.
TOLERANCE = 2**-6


def supports(q: Tensor, head_dim: int) -> bool:
    """Return whether the kernel takes queries like these."""
    on_gpu = _kernel is not None and q.device.type == "cuda"
    fits = q.dtype in triton_support.HALF_PRECISION and head_dim in (32, 64, 128, 256)
    return on_gpu and fits and is_verified(q.device, head_dim)


@cache
def is_verified(device: torch.device, d: int) -> bool:
    """Return whether the kernel compiles on this device for head size `d` and gives what torch
    gives."""
    name = f"attention of scattered rows, heads of {d}"
    return triton_support.matches_torch(name, lambda: _compared(device, d), TOLERANCE)


def _compared(device: torch.device, d: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    q = torch.randn(70, 4, d, generator=random, device=device).bfloat16()
    k, v = torch.randn(2, 2, 200, d, generator=random, device=device).bfloat16()
    rows = torch.arange(0, 200, 3, device=device)[:66]
    q = q[: len(rows)]
    ours = attend(q, k, v, rows, d**-0.5)
    mask = torch.arange(200, device=device) <= rows[:, None]
    theirs = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None].float(), k[None].float(), v[None].float(), attn_mask=mask,
        scale=d**-0.5, enable_gqa=True,
    )[0].transpose(0, 1).reshape(len(rows), -1)  # fmt: skip
    return ours, theirs


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    scale: float,
    *,
    logsums: Tensor | None = None,
    extent: Tensor | None = None,
) -> Tensor:
    """Return softmax attention in which each row sees the keys up to its own position.

    Args:
        q: `[m, heads, head_dim]`.
        k: `[kv_heads, n, head_dim]`, filled up to the position of the last row.
        v: like `k`.
        rows: ascending positions of the queries, `[m]`.
        scale: factor of the scores before the softmax.
        logsums: filled with the logarithm of every softmax's sum, `[heads, m]` fp32.
        extent: where the cache lies in the memory that `k` and `v` are the start of (`EXTENT`):
            their second dimension and the stride of their first are not looked at then.

    Returns:
        `[m, heads * head_dim]`.
    """
    m, heads, d = q.shape
    out = torch.empty(m, heads, d, dtype=q.dtype, device=q.device)
    grid = (-(-m // ROWS), heads)
    _kernel[grid](
        q, k, v, rows, out, out if logsums is None else logsums,
        rows if extent is None else extent, m, scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        GROUP=heads // k.shape[0], D=d, ROWS=ROWS, KEYS=KEYS, LOGSUMS=logsums is not None,
        PLACED=extent is not None, **OPTIONS,
    )  # fmt: skip
    return out.view(m, heads * d)


def _tile(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, rows: tl.tensor, out: tl.tensor,
    logsums: tl.tensor, extent: tl.tensor, m: tl.tensor, scale: tl.tensor, q_row: tl.tensor,
    q_head: tl.tensor, k_head: tl.tensor, k_row: tl.tensor, v_head: tl.tensor, v_row: tl.tensor,
    GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    LOGSUMS: tl.constexpr, PLACED: tl.constexpr,
) -> None:  # fmt: skip
    head = tl.program_id(1)
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside, width = at < m, tl.arange(0, D)
    given = inside
    if PLACED:
        # Rows behind the last that is given see nothing.
        given = at < tl.load(extent + 3)
    index = tl.load(rows + at, mask=inside & given, other=-1)
    last = tl.max(index, 0)
    here = at.to(tl.int64)
    queries = tl.load(
        q + here[:, None] * q_row + head * q_head + width[None, :], mask=inside[:, None], other=0.0
    )
    if PLACED:
        skipped = tl.load(extent) + (head // GROUP).to(tl.int64) * tl.load(extent + 1)
        k += skipped
        v += skipped
    else:
        k += (head // GROUP).to(tl.int64) * k_head
        v += (head // GROUP).to(tl.int64) * v_head
    highest = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, D), tl.float32)
    for first in range(0, last + 1, KEYS):
        key = first + tl.arange(0, KEYS)
        there = key <= last
        keys = tl.load(k + key[None, :] * k_row + width[:, None], mask=there[None, :], other=0.0)
        scores = tl.dot(queries, keys) * scale
        scores = tl.where(key[None, :] <= index[:, None], scores, -1e30)
        higher = tl.maximum(highest, tl.max(scores, 1))
        # Rows past the end see nothing; a score of -1e30 must not become exp(0).
        weights = tl.where(scores > -1e29, tl.exp(scores - higher[:, None]), 0.0)
        fade = tl.exp(highest - higher)
        values = tl.load(v + key[:, None] * v_row + width[None, :], mask=there[:, None], other=0.0)
        summed = summed * fade[:, None] + tl.dot(weights.to(values.dtype), values)
        total = total * fade + tl.sum(weights, 1)
        highest = higher
    result = summed / tl.maximum(total, 1e-30)[:, None]
    heads = tl.num_programs(1)
    place = (here[:, None] * heads + head) * D + width[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside[:, None])
    if LOGSUMS:
        tl.store(logsums + head * m + at, highest + tl.log(total), mask=inside)


_kernel = triton_support.jit(_tile)
