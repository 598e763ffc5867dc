"""The kernels that shift stored KV against torch: the same bytes."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import rotation
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.stored_kv import Shift
from kvstitch.service.worker.model.model_facts import FlopCount
from kvstitch.service.worker.model.rope import RotaryTable
from tests.service.worker.tiny import StoredSegment

pytestmark = pytest.mark.usefixtures("compiled")

HEADS, D = 2, 32
LENGTHS = (5, 70, 1, 9, 130)  # S and documents
N = sum(LENGTHS) + 4


def prompt(d: int = D, dtype: torch.dtype = torch.bfloat16) -> tuple[LayerView, Tensor]:
    """A layer of a prompt with some rows computed, and the probes among them: of its documents one
    has two, one has none, one is a single token."""
    random = torch.Generator().manual_seed(3)
    system, *documents = (list(range(length)) for length in LENGTHS)
    layout = PromptLayout.of(system, documents, [1] * 4, uncached=[False] * len(LENGTHS))
    rope = RotaryTable(10000.0 ** -(torch.arange(0, d, 2) / d), 1.25, N)
    probes = torch.tensor([5, 74, 75, *range(90, 120)])
    rows = torch.cat([probes, torch.arange(N - 4, N)])
    k, v = torch.randn(2, N, HEADS, d, generator=random).to(dtype)
    # As projections leave them, between queries.
    fresh = torch.randn(len(rows), 3 * HEADS, d, generator=random).to(dtype).split(HEADS, 1)
    k_all, v_all = torch.randn(2, HEADS, N + 3, d, generator=random).to(dtype)[:, :, :N]
    v_all[0, 80, 3] = -0.0
    cached = [StoredSegment([k[s.start : s.end]], [v[s.start : s.end]]) for s in layout.segments]
    view = LayerView(
        layer=0, layout=layout, rows=rows, q=fresh[0], k=k_all, v=v_all, fresh_q=fresh[0],
        fresh_k=fresh[1], fresh_v=fresh[2], cached=cached, scale=1.0, rope=rope,
        flops=FlopCount.__new__(FlopCount),
    )  # fmt: skip
    return view, probes


def shifted(*, keys: bool, values: bool, weights: Tensor | float) -> tuple[Tensor, Tensor, bool]:
    view, probes = prompt()
    planned = Shift.of(view, probes, weights)
    assert planned is not None
    planned.apply(view, keys=keys, values=values)
    k, v = (x.contiguous().view(torch.int16) for x in (view.k, view.v))
    return k, v, planned.by_kernel


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("keys, values", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("weights", [0.25, torch.linspace(0, 1, N)], ids=["one", "each"])
def test_as_torch(
    keys: bool, values: bool, weights: Tensor | float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "MIN_PARALLEL", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        k, v, by_kernel = shifted(keys=keys, values=values, weights=weights)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(rotation, "supports_shift", Mock(return_value=False))
    expected_k, expected_v, by_torch = shifted(keys=keys, values=values, weights=weights)
    assert by_kernel and not by_torch and k.equal(expected_k) and v.equal(expected_v)
    was = prompt()[0]
    assert k.equal(was.k.view(torch.int16)) != keys and v.equal(was.v.view(torch.int16)) != values


def test_other_tensors_are_left_to_torch() -> None:
    for view, probes in (prompt(dtype=torch.float32), prompt(48), prompt(544)):
        planned = Shift.of(view, probes, 0.5)
        assert planned is not None and not planned.by_kernel
        planned.apply(view)
    view, _ = prompt()
    fresh, cache = (view.fresh_k, view.fresh_v), (view.k, view.v)
    good = view.fresh_k, view.fresh_v
    assert rotation.supports_shift([good], fresh, cache)
    assert not rotation.supports_shift([good, (view.fresh_k.float(), view.fresh_v)], fresh, cache)
    assert not rotation.supports_shift([good], (view.fresh_k, view.fresh_v[:, 1:]), cache)
    assert not rotation.supports_shift([good], fresh, (view.k, view.v.float()))
