"""Attention of rows at scattered positions on a GPU, in Triton, without a mask in memory.

Index-causal: a row sees the keys up to its own position in the sequence. The query heads that share
a KV head are the columns of one table, so what is read of a key serves all of them:

    tile      consecutive rows × query heads of one KV head     a program each, for every span
    span      consecutive keys; all of them, unless there are fewer tiles than a GPU has room for
    result    the spans of a row put together                   a program per row and query head

A program reads keys up to the position of its last row. Those that all of its rows see need no
mask. The reference is `kvstitch.service.worker.model.attention`. Before its first use on a device
the kernel is compared with torch's attention (`triton_support`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch_gpu import triton_support
from kvstitch_gpu.triton_support import tl

OPTIONS = {"enable_fp_fusion": True}
EXTENT = 4
"""Numbers by which a recorded kernel finds a prompt in a layer of the KV pool: elements from the
layer's first to the prompt's first key, and from one head to the next; tokens of the prompt; rows
that are given. Rows behind these, which fill up a recording, see nothing and write nothing."""
MOST_SPANS, SPAN = 32, 256
"""Most spans of a row, and the fewest keys of one: what a span leaves is written and read again."""
# Allowed difference in the check before the first use: one bfloat16 rounding of values near 1.
TOLERANCE = 2**-6
LOG2_E = 1.4426950408889634


class Form(NamedTuple):
    """How a program computes: rows of its tile, keys read at once, warps, and reads in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


MANY_ROWS = Form(128, 64, 8, 3)
FEW_ROWS = Form(64, 64, 4, 3)
"""Where tiles of `MANY_ROWS` would leave most of the GPU without one, or do not fit into it."""


def supports(q: Tensor, head_dim: int) -> bool:
    """Return whether the kernel takes queries like these."""
    on_gpu = _kernel is not None and q.device.type == "cuda"
    fits = q.dtype in triton_support.HALF_PRECISION and head_dim in (32, 64, 128, 256)
    return on_gpu and fits and is_verified(q.device, head_dim)


def is_verified(device: torch.device, d: int) -> bool:
    """Return whether both forms give what torch gives on this device for head size `d`."""
    forms = {_fitting(form, d, _room(device)) for form in (MANY_ROWS, FEW_ROWS)}
    return all(_agrees(device, d, form, spans) for form in sorted(forms) for spans in (1, 3))


@triton_support.verified("attention of scattered rows, heads of {}, {}, {} spans", TOLERANCE)
def _agrees(device: torch.device, d: int, form: Form, spans: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    q = torch.randn(200, 4, d, generator=random, device=device).bfloat16()
    k, v = torch.randn(2, 2, 600, d, generator=random, device=device).bfloat16()
    rows = torch.arange(0, 600, 3, device=device)
    ours = _attend(q, k, v, rows, d**-0.5, form, spans, 600)
    mask = torch.arange(600, device=device) <= rows[:, None]
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
    most_keys: int | None = None,
) -> Tensor:
    """Return softmax attention `[m, heads * head_dim]` in which each row sees the keys up to its
    position.

    `logsums` `[heads, m]` is filled; with `extent` (`EXTENT`) a row sees at most `most_keys`.
    """
    (m, heads, d), kv_heads = q.shape, k.shape[0]
    n = k.shape[1] if most_keys is None else most_keys
    form, spans = plan(m * (heads // kv_heads), kv_heads, n, d, q.device)
    return _attend(q, k, v, rows, scale, form, spans, n, logsums, extent)


def plan(tall: int, kv_heads: int, n: int, d: int, device: torch.device) -> tuple[Form, int]:
    """Return in which form, and in how many spans, tables of so many rows and n keys are
    computed. A multiprocessor has room for one program of `MANY_ROWS`, or for four of `FEW_ROWS`
    (an H200)."""
    form, processors = MANY_ROWS, _processors(device)
    if -(-tall // form.rows) * kv_heads < processors:
        form = FEW_ROWS
    programs, spans = -(-tall // form.rows) * kv_heads, 1
    if programs < processors:
        spans = min(4 * processors // programs, -(-n // SPAN), MOST_SPANS)
    return _fitting(form, d, _room(device)), spans


def _fitting(form: Form, d: int, room: int) -> Form:
    """Return the form, or a smaller one that fits so many bytes of shared memory."""
    for stages in range(form.stages, 0, -1):
        if 2 * d * (form.rows + 2 * stages * form.keys) <= room:
            return form._replace(stages=stages)
    return FEW_ROWS._replace(keys=32, stages=1)


def _processors(device: torch.device) -> int:
    return 1 if device.type != "cuda" else int(_properties(device).multi_processor_count)


def _room(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return 1 << 20
    return int(_properties(device).shared_memory_per_block_optin)


@cache
def _properties(device: torch.device) -> Any:  # torch's types lack some of them
    return torch.cuda.get_device_properties(device)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, scale: float, form: Form, spans: int, n: int,
    logsums: Tensor | None = None, extent: Tensor | None = None,
) -> Tensor:  # fmt: skip
    (m, heads, d), kv_heads = q.shape, k.shape[0]
    group = heads // kv_heads
    out = torch.empty(m, heads, d, dtype=q.dtype, device=q.device)
    span = -(-n // (spans * form.keys)) * form.keys
    sums, highest, totals = out, out, out
    if spans > 1:
        sums = torch.empty(spans, m, heads, d, dtype=torch.float32, device=q.device)
        highest, totals = torch.empty(2, spans, m, heads, dtype=torch.float32, device=q.device)
    _kernel[(-(-m * group // form.rows), kv_heads, spans)](
        q, k, v, rows, out, out if logsums is None else logsums, sums, highest, totals,
        rows if extent is None else extent, m, span, scale * LOG2_E,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        GROUP=group, D=d, ROWS=form.rows, KEYS=form.keys, SPANS=spans > 1,
        LOGSUMS=logsums is not None, PLACED=extent is not None,
        num_warps=form.warps, num_stages=form.stages, **OPTIONS,
    )  # fmt: skip
    if spans > 1:
        _join[(m, heads)](
            sums, highest, totals, rows, out, out if logsums is None else logsums,
            rows if extent is None else extent, m, span, spans,
            D=d, PARTS=_power_of_two(spans), LOGSUMS=logsums is not None,
            PLACED=extent is not None, num_warps=1, **OPTIONS,
        )  # fmt: skip
    return out.view(m, heads * d)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _tile(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, rows: tl.tensor, out: tl.tensor, logsums: tl.tensor,
    sums: tl.tensor, highest: tl.tensor, totals: tl.tensor, extent: tl.tensor, m: tl.tensor,
    span: tl.tensor, scale: tl.tensor, q_row: tl.tensor, q_head: tl.tensor, k_head: tl.tensor,
    k_row: tl.tensor, v_head: tl.tensor, v_row: tl.tensor, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPANS: tl.constexpr, LOGSUMS: tl.constexpr,
    PLACED: tl.constexpr,
) -> None:  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, head, width = number // GROUP, kv_head * GROUP + number % GROUP, tl.arange(0, D)
    inside = at < m
    given = inside
    if PLACED:
        # Rows behind the last that is given see nothing.
        given = at < tl.load(extent + 3)
        # Runs of the pool begin where a row of it begins; unless the compiler is told, it reads
        # two bytes at a time.
        skipped = tl.multiple_of(tl.load(extent) + kv_head * tl.load(extent + 1), 16)
        k += skipped
        v += skipped
    else:
        k += kv_head * k_head
        v += kv_head * v_head
    index = tl.load(rows + at, mask=inside & given, other=-1).to(tl.int32)
    here = at.to(tl.int64)
    queries = tl.load(
        q + here[:, None] * q_row + head[:, None] * q_head + width[None, :],
        mask=inside[:, None], other=0.0,
    )  # fmt: skip
    begin = tl.program_id(2) * span
    stop = tl.minimum(tl.max(index, 0) + 1, begin + span)
    # Keys before this are seen by every row of the tile that is given.
    seen_by_all = tl.min(tl.where(inside & given, index, 1 << 30), 0) + 1
    bare = begin + tl.maximum(tl.minimum(seen_by_all, stop) - begin, 0) // KEYS * KEYS
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, D), tl.float32)
    for first in range(begin, bare, KEYS):
        key = first + tl.arange(0, KEYS)
        keys = tl.load(k + key[None, :] * k_row + width[:, None])
        scores = tl.dot(queries, keys) * scale
        more = tl.maximum(most, tl.max(scores, 1))
        weights, fade = tl.exp2(scores - more[:, None]), tl.exp2(most - more)
        values = tl.load(v + key[:, None] * v_row + width[None, :])
        summed = tl.dot(weights.to(values.dtype), values, summed * fade[:, None])
        total = total * fade + tl.sum(weights, 1)
        most = more
    for first in range(bare, stop, KEYS):
        key = first + tl.arange(0, KEYS)
        there = key < stop
        keys = tl.load(k + key[None, :] * k_row + width[:, None], mask=there[None, :], other=0.0)
        seen = (key[None, :] <= index[:, None]) & there[None, :]
        scores = tl.where(seen, tl.dot(queries, keys) * scale, float("-inf"))
        more = tl.maximum(most, tl.max(scores, 1))
        # Rows that have seen nothing yet: of two infinities the difference is no number.
        level = tl.where(more == float("-inf"), 0.0, more)
        weights, fade = tl.exp2(scores - level[:, None]), tl.exp2(most - level)
        values = tl.load(v + key[:, None] * v_row + width[None, :], mask=there[:, None], other=0.0)
        summed = tl.dot(weights.to(values.dtype), values, summed * fade[:, None])
        total = total * fade + tl.sum(weights, 1)
        most = more
    heads = tl.num_programs(1) * GROUP
    place = here * heads + head
    if SPANS:
        part = tl.program_id(2).to(tl.int64) * m * heads + place
        # What a row does not see of this span, `_join` does not read.
        told = inside & (index >= begin)
        tl.store(sums + part[:, None] * D + width[None, :], summed, mask=told[:, None])
        tl.store(highest + part, most, mask=told)
        tl.store(totals + part, total, mask=told)
    else:
        # Rows that are not given went along with those that see every key.
        total = tl.where(index >= 0, total, 0.0)
        result = tl.where(index[:, None] >= 0, summed / tl.maximum(total, 1e-30)[:, None], 0.0)
        tl.store(
            out + place[:, None] * D + width[None, :], result.to(out.dtype.element_ty),
            mask=inside[:, None],
        )  # fmt: skip
        if LOGSUMS:
            ln_2 = 0.6931471805599453
            tl.store(logsums + head * m + at, (most + tl.log2(total)) * ln_2, mask=inside)


def _join_spans(
    sums: tl.tensor, highest: tl.tensor, totals: tl.tensor, rows: tl.tensor, out: tl.tensor,
    logsums: tl.tensor, extent: tl.tensor, m: tl.tensor, span: tl.tensor, spans: tl.tensor,
    D: tl.constexpr, PARTS: tl.constexpr, LOGSUMS: tl.constexpr, PLACED: tl.constexpr,
) -> None:  # fmt: skip
    at, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    width, part = tl.arange(0, D), tl.arange(0, PARTS)
    index = tl.load(rows + at)
    if PLACED:
        index = tl.where(at < tl.load(extent + 3), index, -1)
    there = (part < spans) & (part * span <= index)
    place = (part.to(tl.int64) * m + at) * heads + head
    reached = tl.load(highest + place, mask=there, other=float("-inf"))
    most = tl.maximum(tl.max(reached, 0), -1e30)
    share = tl.exp2(reached - most)
    total = tl.sum(share * tl.load(totals + place, mask=there, other=0.0), 0)
    found = tl.load(sums + place[:, None] * D + width[None, :], mask=there[:, None], other=0.0)
    result = tl.sum(share[:, None] * found, 0) / tl.maximum(total, 1e-30)
    tl.store(out + (at * heads + head) * D + width, result.to(out.dtype.element_ty))
    if LOGSUMS:
        ln_2 = 0.6931471805599453
        tl.store(logsums + head * m + at, (most + tl.log2(total)) * ln_2)


_kernel = triton_support.jit(_tile, "m", "span")
_join = triton_support.jit(_join_spans, "m", "span", "spans")
