"""The Triton kernel that shifts stored KV against torch's `Shift`: run by Triton's interpreter,
which needs no GPU, and on the GPU where there is one."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from service.worker.kernels.gpu import shift_gpu
from service.worker.layout import PromptLayout
from service.worker.methods.layer_view import LayerView, Replaced
from service.worker.methods.stored_kv import Shift
from service.worker.model.flops import FlopCount
from service.worker.model.rope import RotaryTable
from tests.service.worker.kernels.gpu.interpreter import needs_triton, run_interpreted
from tests.service.worker.tiny import StoredSegment, assert_close

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
        fresh_k=fresh[1], fresh_v=fresh[2], cached=cached, scale=1.0, rotate=rope.rotate,
        flops=FlopCount.__new__(FlopCount), replaced=Replaced(old_k, old_v, rope),
    )  # fmt: skip
    return view, layout.on_device(probes)


def compare(device: str) -> None:
    """Raises AssertionError where the kernel and torch differ, or the kernel was not used."""
    for dtype in (torch.float16, torch.bfloat16) if device == "cuda" else (torch.float32,):
        for keys, values in ((True, True), (True, False), (False, True)):
            found = []
            for by_kernel in (True, False):
                view, probes = prompt(device, dtype)
                before = view.k.clone(), view.v.clone()
                weights = torch.linspace(0, 1, view.layout.tokens).to(device)
                kept = view.replaced if by_kernel else None
                view = replace(view, replaced=kept)
                with patch.object(shift_gpu, "supports", lambda _: True):
                    planned = Shift.of(view, probes, weights)
                assert planned is not None and (planned.plan is not None) == by_kernel
                planned.apply(view, keys=keys, values=values)
                found.append((view.k, view.v))
                moved = [not a.equal(b) for a, b in zip((view.k, view.v), before, strict=True)]
                assert moved == [keys, values]
                stay = torch.cat([view.rows, torch.arange(75, 76, device=device)])
                assert view.k[:, stay].equal(before[0][:, stay])
            for ours, theirs in zip(*found, strict=True):
                allowed = 1e-5 if dtype is torch.float32 else 2**-5
                assert_close("shifted", ours.float().cpu(), theirs.float().cpu(), allowed)


@needs_triton
def test_in_the_interpreter() -> None:
    run_interpreted(__name__, "compare")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_on_the_gpu() -> None:
    assert shift_gpu.is_verified(torch.device("cuda"))
    compare("cuda")


def test_a_cpu_is_left_to_others() -> None:
    assert not shift_gpu.supports(torch.zeros(2, 4, 64, dtype=torch.bfloat16))
