"""Rotates queries, and rotates and writes keys with their values, on a GPU, in Triton: one launch
for what takes torch dozens. The results equal `kvstitch.service.worker.model.rope` bit by bit,
which is checked before the first use on a device (`triton_support`)."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstitch_gpu import triton_support
from kvstitch_gpu.triton_support import tl

ROWS = 16
# No fused multiply-add: it rounds once less than torch does, and results must be equal bit by bit.
OPTIONS = {"enable_fp_fusion": False}


def supports(x: Tensor) -> bool:
    """Return whether the kernels take x `[rows, heads, head_dim]`."""
    return triton_support.takes_heads(_rotate, x) and is_verified(x.device)


@triton_support.verified("rotating rows", 0.0)
def is_verified(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    rows, heads, d, n = 37, 3, 64, 90
    frequencies = 10000.0 ** -(torch.arange(0, d, 2, device=device) / d)
    angles = torch.outer(torch.arange(n, dtype=torch.float32, device=device), frequencies)
    positions = torch.randperm(n, generator=random, device=device)[:rows]
    x = torch.randn(rows, 4 * heads, d, generator=random, device=device).bfloat16()
    q, k, v = x[:, : 2 * heads], x[:, 2 * heads : 3 * heads], x[:, 3 * heads :]
    ours = torch.zeros(2, heads, n, d, dtype=torch.bfloat16, device=device)
    where = {"cos": angles.cos(), "sin": angles.sin()}
    old = k.flip(-1).contiguous(), v.flip(-1).contiguous()
    ours[0][:, positions], ours[1][:, positions] = (x.transpose(0, 1) for x in old)
    kept = torch.empty_like(old[0]), torch.empty_like(old[1])
    queries = write_with_queries(q, k, v, *ours, positions=positions, **where, replaced=kept)
    theirs = torch.zeros_like(ours)
    left, right = x[:, : 3 * heads].float().chunk(2, -1)
    c, s = (table[positions].unsqueeze(1) for table in where.values())
    whole = torch.cat([left * c - right * s, right * c + left * s], -1).bfloat16()
    turned = whole[:, 2 * heads :]
    theirs[0][:, positions], theirs[1][:, positions] = turned.transpose(0, 1), v.transpose(0, 1)
    flat = torch.zeros(2, heads * n, d, dtype=torch.bfloat16, device=device)
    into = (torch.arange(heads, device=device) * n + positions[:, None]).flatten()
    write(k, v, *flat, positions=positions, **where, into=into)
    rotated = rotate(k, positions, **where)
    both = [ours, flat, queries, rotated, *kept]
    expected = [theirs, theirs, whole[:, : 2 * heads], turned, *old]
    return torch.cat([x.flatten() for x in both]), torch.cat([x.flatten() for x in expected])


def rotate(x: Tensor, positions: Tensor, *, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x `[rows, heads, head_dim]` rotated to `positions` `[rows]`, contiguous."""
    rows, heads, d = x.shape
    out = torch.empty(rows, heads, d, dtype=x.dtype, device=x.device)
    half = d // 2
    _rotate[(-(-rows // ROWS), heads)](
        x, positions, cos, sin, out, rows, x.stride(0), x.stride(1),
        HALF=half, WIDTH=1 << (half - 1).bit_length(), ROWS=ROWS, **OPTIONS,
    )  # fmt: skip
    return out


def write(
    k: Tensor,
    v: Tensor,
    k_all: Tensor,
    v_all: Tensor,
    *,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    into: Tensor | None = None,
) -> None:
    """Write k, rotated, and v to a cache at the rows `positions`, or at the rows `into` of a
    flat one."""
    _launch_write(None, k, v, k_all, v_all, k_all, positions, cos, sin, into, None)


def write_with_queries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_all: Tensor,
    v_all: Tensor,
    *,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    into: Tensor | None = None,
    replaced: tuple[Tensor, Tensor] | None = None,
    extent: Tensor | None = None,
) -> Tensor:
    """`write`, and return queries `[rows, heads, head_dim]` rotated, contiguous. With `extent`
    (`index_causal_attention.EXTENT`), k_all and v_all are the start of the memory that the cache
    lies in. `replaced` is filled with what stood there."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _launch_write(q, k, v, k_all, v_all, out, positions, cos, sin, into, replaced, extent)
    return out


def _launch_write(
    q: Tensor | None, k: Tensor, v: Tensor, k_all: Tensor, v_all: Tensor, rotated: Tensor,
    positions: Tensor, cos: Tensor, sin: Tensor, into: Tensor | None,
    replaced: tuple[Tensor, Tensor] | None, extent: Tensor | None = None,
) -> None:  # fmt: skip
    assert k_all.stride() == v_all.stride()
    rows, heads, d = k.shape
    half, queries = d // 2, 0 if q is None else q.shape[1]
    x = k if q is None else q
    of_head, of_row = (k_all.stride(0), k_all.stride(1)) if into is None else (0, d)
    _write[(-(-rows // ROWS), queries + heads)](
        x, k, v, rotated, k_all, v_all, positions, positions if into is None else into, cos, sin,
        *(replaced or (k_all, v_all)), positions if extent is None else extent, rows,
        x.stride(0), x.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        of_head, of_row, QUERIES=queries, SCATTERED=into is not None, KEPT=replaced is not None,
        PLACED=extent is not None, HALF=half, WIDTH=1 << (half - 1).bit_length(), ROWS=ROWS,
        **OPTIONS,
    )  # fmt: skip


def _rotate_rows(
    x: tl.tensor, positions: tl.tensor, cos: tl.tensor, sin: tl.tensor, out: tl.tensor,
    rows: tl.tensor, of_row: tl.tensor, of_head: tl.tensor, HALF: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    row, width = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = row < rows
    there = inside[:, None] & (width < HALF)[None, :]
    at = x + row[:, None] * of_row + head * of_head + width[None, :]
    low = tl.load(at, mask=there, other=0).to(tl.float32)
    high = tl.load(at + HALF, mask=there, other=0).to(tl.float32)
    turn = tl.load(positions + row, mask=inside, other=0)[:, None] * HALF + width[None, :]
    c = tl.load(cos + turn, mask=there, other=0.0)
    s = tl.load(sin + turn, mask=there, other=0.0)
    into = out + (row * heads + head)[:, None] * (2 * HALF) + width[None, :]
    tl.store(into, (low * c - high * s).to(out.dtype.element_ty), mask=there)
    tl.store(into + HALF, (high * c + low * s).to(out.dtype.element_ty), mask=there)


def _write_rows(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, rotated: tl.tensor, k_all: tl.tensor,
    v_all: tl.tensor, positions: tl.tensor, into: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    old_k: tl.tensor, old_v: tl.tensor, extent: tl.tensor, rows: tl.tensor,
    q_row: tl.tensor, q_head: tl.tensor, k_row: tl.tensor, k_head: tl.tensor,
    v_row: tl.tensor, v_head: tl.tensor, out_head: tl.tensor, out_row: tl.tensor,
    QUERIES: tl.constexpr, SCATTERED: tl.constexpr, KEPT: tl.constexpr, PLACED: tl.constexpr,
    HALF: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    # Programs of the first QUERIES heads rotate queries, the others write keys and values.
    head, heads = tl.program_id(1).to(tl.int64) - QUERIES, tl.num_programs(1) - QUERIES
    row, width = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = row < rows
    there = inside[:, None] & (width < HALF)[None, :]
    position = tl.load(positions + row, mask=inside, other=0)
    turn = position[:, None] * HALF + width[None, :]
    c = tl.load(cos + turn, mask=there, other=0.0)
    s = tl.load(sin + turn, mask=there, other=0.0)
    if head < 0:
        query = q + row[:, None] * q_row + (head + QUERIES) * q_head + width[None, :]
        low = tl.load(query, mask=there, other=0).to(tl.float32)
        high = tl.load(query + HALF, mask=there, other=0).to(tl.float32)
        place = (row * QUERIES + head + QUERIES)[:, None] * (2 * HALF) + width[None, :]
        tl.store(rotated + place, (low * c - high * s).to(rotated.dtype.element_ty), mask=there)
        turned = (high * c + low * s).to(rotated.dtype.element_ty)
        tl.store(rotated + place + HALF, turned, mask=there)
    else:
        key = k + row[:, None] * k_row + head * k_head + width[None, :]
        value = v + row[:, None] * v_row + head * v_head + width[None, :]
        low = tl.load(key, mask=there, other=0).to(tl.float32)
        high = tl.load(key + HALF, mask=there, other=0).to(tl.float32)
        v_low = tl.load(value, mask=there, other=0)
        v_high = tl.load(value + HALF, mask=there, other=0)
        target = position
        if SCATTERED:
            target = tl.load(into + row * heads + head, mask=inside, other=0)
        place = head * out_head + target[:, None] * out_row + width[None, :]
        if PLACED:
            skipped = tl.load(extent) + head * tl.load(extent + 1)
            place = tl.multiple_of(skipped, (2 * HALF) & -(2 * HALF))
            place += target[:, None] * (2 * HALF) + width[None, :]
            there &= (row < tl.load(extent + 3))[:, None]
        if KEPT:
            kept = (row * heads + head)[:, None] * (2 * HALF) + width[None, :]
            tl.store(old_k + kept, tl.load(k_all + place, mask=there), mask=there)
            tl.store(old_k + kept + HALF, tl.load(k_all + place + HALF, mask=there), mask=there)
            tl.store(old_v + kept, tl.load(v_all + place, mask=there), mask=there)
            tl.store(old_v + kept + HALF, tl.load(v_all + place + HALF, mask=there), mask=there)
        tl.store(k_all + place, (low * c - high * s).to(k_all.dtype.element_ty), mask=there)
        turned = (high * c + low * s).to(k_all.dtype.element_ty)
        tl.store(k_all + place + HALF, turned, mask=there)
        tl.store(v_all + place, v_low, mask=there)
        tl.store(v_all + place + HALF, v_high, mask=there)


_rotate = triton_support.jit(_rotate_rows, "rows")
_write = triton_support.jit(_write_rows, "rows")
