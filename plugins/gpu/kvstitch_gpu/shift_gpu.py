"""Shifts stored KV by what some of it was wrong by, on a GPU, in Triton, a layer in one launch: a
program takes a block of rows of a document and a KV head, and adds weight · mean of its document's
probes, fresh − replaced.

Keys are turned back to before RoPE in fp32; elsewhere the stored ones are read, which were rounded
once less. Compared with torch before the first use on a device (`triton_support`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvstitch.service.worker.layout import to_device
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.stored_kv import PlannedShift, Probed
from kvstitch_gpu import triton_support
from kvstitch_gpu.triton_support import tl

# Rows of a program, and probes that it reads at once.
ROWS, PROBES = 64, 16
OPTIONS = {"enable_fp_fusion": False}
COLUMNS = 4
# Allowed difference in the check before the first use: a bfloat16 rounding of values up to 4.
TOLERANCE = 2**-6


@dataclass(frozen=True)
class ShiftPlan:
    """Which rows are shifted by which probes; the same at every layer."""

    # a line for every program: first row in the prompt, number of rows, the document's first probe,
    # number of its probes; then the probes' places among the computed rows. int64, flat
    programs: Tensor
    number: int  # of programs
    weights: Tensor  # of every row from `first` on, 0 for those that stay, in the cache's dtype
    first: int  # row of the prompt

    @classmethod
    def of(
        cls, lines: Tensor, places: Tensor, weights: Tensor, first: int, device: torch.device
    ) -> ShiftPlan:
        """Plan the shift by the lines of `programs` and all probes' places among the computed
        rows, in host memory; weights are of every row from `first` on."""
        packed = to_device(torch.cat([lines.flatten(), places]), device)
        return cls(packed, len(lines), weights.contiguous(), first)


def programs(documents: Sequence[Probed]) -> Tensor:
    """Return a line for every program `[programs, 4]`, in host memory."""
    lines, at = [], 0
    for document in documents:
        span, count = document.span, len(document.tokens)
        for row in range(span.start, span.stop, ROWS):
            lines.append((row, min(ROWS, span.stop - row), at, count))
        at += count
    return torch.tensor(lines, dtype=torch.int64).view(-1, COLUMNS)


class KernelShift(PlannedShift):
    """A planned shift with its programs."""

    @cached_property
    def lines(self) -> Tensor:
        return programs(self.documents)


def supports(kv: Tensor) -> bool:
    """Return whether the kernel can shift a cache `[kv_heads, tokens, head_dim]` like this."""
    return triton_support.takes_heads(_kernel, kv) and is_verified(kv.device)


@triton_support.verified("shifting stored KV", TOLERANCE)
def is_verified(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    heads, d, n = 2, 64, 100
    frequencies = 10000.0 ** -(torch.arange(0, d, 2, device=device) / d)
    angles = torch.outer(torch.arange(n, dtype=torch.float32, device=device), frequencies)
    ours = torch.randn(2, heads, n, d, generator=random, device=device).bfloat16()
    theirs = ours.clone()
    rows = torch.tensor([4, 30, 70], device=device)
    fresh, old = torch.randn(2, 2, 3, heads, d, generator=random, device=device).bfloat16()
    weights = torch.full((90,), 0.5, dtype=torch.bfloat16, device=device)
    spans = slice(5, 65), slice(65, 95)
    probe = torch.zeros(1, dtype=torch.int64)
    documents = [Probed(i, span, probe, probe) for i, span in enumerate(spans)]
    plan = ShiftPlan.of(programs(documents), torch.tensor([1, 2]), weights, 5, device)
    shift(
        plan, ours[0], ours[1], (fresh[0], fresh[1]), (old[0], old[1]), rows, cos=angles.cos(),
        sin=angles.sin(), keys=True, values=True,
    )  # fmt: skip
    for at, span in enumerate(spans, 1):
        back = _turned(old[0, at], -angles[rows[at]])
        by_k = (0.5 * (fresh[0, at].float() - back).bfloat16()).float()
        by_v = 0.5 * (fresh[1, at].float() - old[1, at].float()).bfloat16()
        theirs[0][:, span] += _turned(by_k[:, None], angles[span]).bfloat16()
        theirs[1][:, span] += by_v[:, None]
    return ours, theirs


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    low, high = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def shift(
    plan: ShiftPlan,
    k_all: Tensor,
    v_all: Tensor,
    fresh: tuple[Tensor, Tensor],
    replaced: tuple[Tensor, Tensor],
    rows: Tensor,
    *,
    cos: Tensor,
    sin: Tensor,
    keys: bool,
    values: bool,
    extent: Tensor | None = None,
) -> None:
    """Shift keys and values of a layer in place: k_all after RoPE and v_all `[kv_heads, n,
    head_dim]`, those of the computed `rows` `[m]` fresh. `fresh` and `replaced` are these rows'
    keys, before and after RoPE, and values `[m, kv_heads, head_dim]`; `extent` as in
    `index_causal_attention.EXTENT`."""
    assert k_all.stride() == v_all.stride()
    fresh_k, fresh_v = fresh
    half = cos.shape[1]
    _kernel[(plan.number, k_all.shape[0])](
        k_all, v_all, fresh_k, fresh_v, *replaced, rows, plan.programs, plan.weights, cos, sin,
        rows if extent is None else extent, plan.number, plan.first, k_all.stride(0),
        k_all.stride(1), fresh_k.stride(0), fresh_k.stride(1), fresh_v.stride(0),
        fresh_v.stride(1),
        OF_KEYS=keys, OF_VALUES=values, PLACED=extent is not None, HALF=half,
        WIDTH=1 << (half - 1).bit_length(), ROWS=ROWS, PROBES=PROBES, COLUMNS=COLUMNS, **OPTIONS,
    )  # fmt: skip


def shift_view(plan: ShiftPlan, view: LayerView, *, keys: bool, values: bool) -> None:
    """Shift the layer of a view that has kept what was replaced."""
    assert view.replaced is not None
    shift(
        plan, view.k, view.v, (view.fresh_k, view.fresh_v), view.replaced, view.rows,
        cos=view.rope.cos, sin=view.rope.sin, keys=keys, values=values,
    )  # fmt: skip


def _shift_block(
    k_all: tl.tensor, v_all: tl.tensor, fresh_k: tl.tensor, fresh_v: tl.tensor, old_k: tl.tensor,
    old_v: tl.tensor, rows: tl.tensor, programs: tl.tensor, weights: tl.tensor, cos: tl.tensor,
    sin: tl.tensor, extent: tl.tensor, number: tl.tensor, first_row: tl.tensor, of_head: tl.tensor,
    of_row: tl.tensor, k_row: tl.tensor, k_head: tl.tensor, v_row: tl.tensor, v_head: tl.tensor,
    OF_KEYS: tl.constexpr, OF_VALUES: tl.constexpr, PLACED: tl.constexpr, HALF: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, PROBES: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    mine = programs + tl.program_id(0) * COLUMNS
    first, count = tl.load(mine + 2), tl.load(mine + 3)
    places = programs + number * COLUMNS + first
    width = tl.arange(0, WIDTH)
    wide = (width < HALF)[None, :]
    k_low = tl.zeros((WIDTH,), tl.float32)
    k_high = tl.zeros((WIDTH,), tl.float32)
    v_low = tl.zeros((WIDTH,), tl.float32)
    v_high = tl.zeros((WIDTH,), tl.float32)
    done = 0
    while done < count:
        probe = done + tl.arange(0, PROBES)
        inside = probe < count
        there = inside[:, None] & wide
        at = tl.load(places + probe, mask=inside, other=0)
        kept = (at * heads + head)[:, None] * (2 * HALF) + width[None, :]
        if OF_KEYS:
            position = tl.load(rows + at, mask=inside, other=0)
            turn = position[:, None] * HALF + width[None, :]
            c = tl.load(cos + turn, mask=there, other=1.0)
            s = tl.load(sin + turn, mask=there, other=0.0)
            # Cosine and sine are multiplied by the model's attention scaling.
            scale = 1.0 / (c * c + s * s)
            low = tl.load(old_k + kept, mask=there, other=0.0).to(tl.float32)
            high = tl.load(old_k + kept + HALF, mask=there, other=0.0).to(tl.float32)
            new = fresh_k + at[:, None] * k_row + head * k_head + width[None, :]
            new_low = tl.load(new, mask=there, other=0.0).to(tl.float32)
            new_high = tl.load(new + HALF, mask=there, other=0.0).to(tl.float32)
            k_low += tl.sum(new_low - (low * c + high * s) * scale, 0)
            k_high += tl.sum(new_high - (high * c - low * s) * scale, 0)
        if OF_VALUES:
            new = fresh_v + at[:, None] * v_row + head * v_head + width[None, :]
            new_low = tl.load(new, mask=there, other=0.0).to(tl.float32)
            new_high = tl.load(new + HALF, mask=there, other=0.0).to(tl.float32)
            low = tl.load(old_v + kept, mask=there, other=0.0).to(tl.float32)
            high = tl.load(old_v + kept + HALF, mask=there, other=0.0).to(tl.float32)
            v_low += tl.sum(new_low - low, 0)
            v_high += tl.sum(new_high - high, 0)
        done += PROBES
    row = tl.load(mine) + tl.arange(0, ROWS)
    inside = tl.arange(0, ROWS) < tl.load(mine + 1)
    weight = tl.load(weights + row - first_row, mask=inside, other=0.0)
    moved = (weight != 0.0)[:, None] & wide
    place = head * of_head + row[:, None] * of_row + width[None, :]
    if PLACED:
        skipped = tl.load(extent) + head * tl.load(extent + 1)
        place = tl.multiple_of(skipped, (2 * HALF) & -(2 * HALF))
        place += row[:, None] * (2 * HALF) + width[None, :]
    # Rounded where torch rounds: the mean, the product, the rotated product.
    kind = k_all.dtype.element_ty
    by = weight.to(tl.float32)[:, None]
    if OF_KEYS:
        turn = row[:, None] * HALF + width[None, :]
        c = tl.load(cos + turn, mask=moved, other=0.0)
        s = tl.load(sin + turn, mask=moved, other=0.0)
        low = ((k_low / count).to(kind).to(tl.float32)[None, :] * by).to(kind).to(tl.float32)
        high = ((k_high / count).to(kind).to(tl.float32)[None, :] * by).to(kind).to(tl.float32)
        more_low = (low * c - high * s).to(kind).to(tl.float32)
        more_high = (high * c + low * s).to(kind).to(tl.float32)
        was_low = tl.load(k_all + place, mask=moved, other=0.0).to(tl.float32)
        was_high = tl.load(k_all + place + HALF, mask=moved, other=0.0).to(tl.float32)
        tl.store(k_all + place, (was_low + more_low).to(kind), mask=moved)
        tl.store(k_all + place + HALF, (was_high + more_high).to(kind), mask=moved)
    if OF_VALUES:
        low = ((v_low / count).to(kind).to(tl.float32)[None, :] * by).to(kind).to(tl.float32)
        high = ((v_high / count).to(kind).to(tl.float32)[None, :] * by).to(kind).to(tl.float32)
        was_low = tl.load(v_all + place, mask=moved, other=0.0).to(tl.float32)
        was_high = tl.load(v_all + place + HALF, mask=moved, other=0.0).to(tl.float32)
        tl.store(v_all + place, (was_low + low).to(kind), mask=moved)
        tl.store(v_all + place + HALF, (was_high + high).to(kind), mask=moved)


_kernel = triton_support.jit(_shift_block, "number", "first_row")
