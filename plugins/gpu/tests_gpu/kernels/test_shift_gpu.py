"""The Triton kernel that shifts stored KV against torch's `Shift`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import LayerView, Replaced
from kvstitch.service.worker.methods.stored_kv import Shift
from kvstitch.service.worker.model.model_facts import FlopCount
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch_gpu import shift_gpu
from kvstitch_gpu.shift_gpu import KernelShift, ShiftPlan
from tests.service.worker.tiny import StoredSegment, assert_close
from tests_gpu.kernels.interpreter import needs_gpu

HEADS, D = 2, 32
LENGTHS = (5, 70, 1, 9, 130)  # S and documents; one longer than a block of rows


def prompt(device: str, dtype: torch.dtype) -> tuple[LayerView, Tensor]:
    """A layer of a prompt with some rows computed, and the probes among them."""
    random = torch.Generator().manual_seed(3)
    n = sum(LENGTHS) + 4
    system, *documents = (list(range(length)) for length in LENGTHS)
    layout = PromptLayout.of(system, documents, [1] * 4, uncached=[False] * len(LENGTHS))
    layout = layout.to(device)
    rope = RotaryTable(10000.0 ** -(torch.arange(0, D, 2, device=device) / D), 1.25, n)
    # Two probes in the first document, none in the second, more than are read at once in the last.
    probes = torch.tensor([5, 74, 80, *range(90, 120)])
    computed = torch.cat([probes, torch.arange(n - 4, n)])
    stored = torch.randn(2, n, HEADS, D, generator=random).to(device, dtype)
    fresh = torch.randn(3, len(computed), HEADS, D, generator=random).to(device, dtype)
    k_all = rope.rotate(stored[0], torch.arange(n, device=device)).transpose(0, 1).contiguous()
    v_all = stored[1].transpose(0, 1).contiguous()
    rows = layout.on_device(computed)
    old_k, old_v = (x[:, rows].transpose(0, 1).contiguous() for x in (k_all, v_all))
    k_all[:, rows] = rope.rotate(fresh[1], rows).transpose(0, 1)
    v_all[:, rows] = fresh[2].transpose(0, 1)
    cached = [StoredSegment(*([of[s.start : s.end]] for of in stored))
              for s in layout.segments]  # fmt: skip
    view = LayerView(
        layer=0, layout=layout, rows=rows, q=fresh[0], k=k_all, v=v_all, fresh_q=fresh[0],
        fresh_k=fresh[1], fresh_v=fresh[2], cached=cached, scale=1.0, rope=rope,
        flops=FlopCount.__new__(FlopCount), replaced=Replaced(old_k, old_v),
    )  # fmt: skip
    return view, layout.on_device(probes)


def compare(device: str) -> None:
    """Raises AssertionError where the kernel and torch differ, or the kernel was not used."""
    for dtype in (torch.float16, torch.bfloat16) if device == "cuda" else (torch.float32,):
        for keys, values in ((True, False), (False, True)):
            found = []
            for by_kernel in (True, False):
                view, probes = prompt(device, dtype)
                before = view.k.clone(), view.v.clone()
                weights = torch.linspace(0, 1, view.layout.tokens).to(device)
                kept = view.replaced if by_kernel else None
                view = replace(view, replaced=kept)
                with patch.object(shift_gpu, "supports", lambda _: True):
                    planned = Shift.of(view, probes, weights)
                assert planned is not None and (planned.on_device is not None) == by_kernel
                planned.apply(view, keys=keys, values=values)
                found.append((view.k, view.v))
                moved = [not a.equal(b) for a, b in zip((view.k, view.v), before, strict=True)]
                assert moved == [keys, values]
                stay = torch.cat([view.rows, torch.arange(75, 76, device=device)])
                assert view.k[:, stay].equal(before[0][:, stay])
            for ours, theirs in zip(*found, strict=True):
                allowed = 1e-5 if dtype is torch.float32 else 2**-5
                assert_close("shifted", ours.float().cpu(), theirs.float().cpu(), allowed)


def compare_placed(device: str) -> None:
    """Raises AssertionError where a cache that lies in a pool is shifted otherwise."""
    view, probes = prompt(device, torch.float16)
    planned = KernelShift.of(view.layout, view.cached, view.rows, probes, 0.5)
    weights = (planned.moved * 0.5).to(device, torch.float16)
    # Programs that fill up a recording shift nothing.
    lines = torch.cat([planned.lines, torch.zeros(3, 4, dtype=torch.int64)])
    plan = ShiftPlan.of(lines, planned.places, weights, 0, torch.device(device))
    heads, n, d = view.k.shape
    before, gap = 7, n + 5
    pool = torch.randn(2, before + heads * gap, d, device=device).half()
    of_head = [slice(before + head * gap, before + head * gap + n) for head in range(heads)]
    for x, cache in zip(pool, (view.k, view.v), strict=True):
        for span, rows in zip(of_head, cache, strict=True):
            x[span] = rows
    was, expected = pool.clone(), pool.clone()
    assert view.replaced is not None
    rope = view.rope
    both: dict[str, Any] = {"cos": rope.cos, "sin": rope.sin, "keys": True, "values": True}
    parts = plan, (view.fresh_k, view.fresh_v), view.replaced, view.rows
    extent = torch.tensor([before * d, gap * d, n, len(view.rows)], device=device)
    k_all, v_all = (x[:1].expand(heads, -1, -1) for x in pool)
    shift_gpu.shift(parts[0], k_all, v_all, *parts[1:], **both, extent=extent)
    shift_gpu.shift(parts[0], view.k, view.v, *parts[1:], **both)
    for x, cache in zip(expected, (view.k, view.v), strict=True):
        for span, rows in zip(of_head, cache, strict=True):
            x[span] = rows
    assert pool.equal(expected) and not pool.equal(was)


CHECKS = [compare, compare_placed]


@pytest.mark.gpu
@needs_gpu
def test_on_the_gpu() -> None:
    assert shift_gpu.is_verified(torch.device("cuda"))
    compare("cuda")
    compare_placed("cuda")
