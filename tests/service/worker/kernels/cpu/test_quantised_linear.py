"""Products with int8 and int4 weights, against the weights that they stand for in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import cpu_linear, linear_few_rows, native
from kvstitch.service.worker.kernels.cpu.weight import GROUP, LEVELS, Weight, quantised
from kvstitch.service.worker.steps import run
from tests.service.worker.tiny import assert_close

pytestmark = pytest.mark.exhaustive

BITS = (8, 4)


def drawn(*shape: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=random) / shape[-1] ** 0.5).bfloat16()


def exact(weight: Weight) -> Tensor:
    return weight.dequantised(torch.float32).double()


@pytest.fixture(params=[True, False], ids=["kernels", "torch"])
def by_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernels, and as where they are not compiled."""
    if not request.param:
        monkeypatch.setattr(native, "module", lambda: None)


def test_values_are_rounded_to_the_nearest_level() -> None:
    weight = drawn(40, 96, seed=1).float()
    eight, four = quantised(weight, 8), quantised(weight, 4)
    assert eight.scales is not None and four.scales is not None
    assert eight.values.dtype == torch.int8 and four.values.shape == (40, 48)
    off = (exact(eight) - weight).abs() / eight.scales[:, None]
    assert float(off.max()) <= 0.5 + 1e-4
    assert bool((eight.values.abs().amax(1) == LEVELS[8]).all())
    # A plain scale, by which the largest of a group is 7, is among what could have been chosen.
    groups = weight.view(40, -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / 7
    plain = ((groups / scale).round() * scale - groups).square().sum(-1)
    ours = (exact(four).view(groups.shape) - groups).square().sum(-1)
    assert float(ours.sum()) < 0.9 * float(plain.sum())
    assert not exact(quantised(torch.zeros(3, 64), 4)).any()
    assert not exact(quantised(torch.zeros(3, 64), 8)).any()


@pytest.mark.parametrize("bits", BITS)
def test_the_kernel_dequantises_as_torch_does(
    compiled: Any, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    weight = quantised(drawn(37, 160, seed=1), bits)
    ours = weight.dequantised(torch.bfloat16)
    monkeypatch.setattr(native, "module", lambda: None)
    assert ours.equal(weight.dequantised(torch.bfloat16))


@pytest.mark.usefixtures("bf16_dot")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", [*range(1, 10), 17, 32])
@pytest.mark.parametrize("outs, columns", [(1, 32), (61, 96), (40, 2080)])
def test_few_rows_are_the_exact_product_rounded(bits, rows, outs, columns) -> None:
    x, bias = drawn(rows, columns, seed=1) * 8, drawn(outs, seed=3)
    weight = quantised(drawn(outs, columns, seed=2), bits)
    whole = exact(weight)
    expected = x.double() @ whole.t() + bias.double()
    ours = linear_few_rows.product(x, Weight(weight.values, weight.scales, bias)).double()
    # One rounding of the result, and for int4 with bfloat16 dot products one of each weight.
    allowed = expected.abs() * 2**-8 * 1.01 + 1e-4
    if bits == 4:
        allowed += (x.double().square() @ whole.t().square()).sqrt() * 2**-8 * 3
    assert bool(((ours - expected).abs() <= allowed).all())


@pytest.mark.usefixtures("bf16_dot")
@pytest.mark.parametrize("bits", BITS)
def test_a_row_does_not_depend_on_its_batch(bits: int) -> None:
    x, weight = drawn(33, 2080, seed=1), quantised(drawn(100, 2080, seed=2), bits)
    alone = torch.cat([linear_few_rows.product(row[None], weight) for row in x])
    for rows in (*range(2, 10), 33):
        assert linear_few_rows.product(x[:rows], weight).equal(alone[:rows])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [2, 60])
def test_many_rows_and_a_gated_mlp_in_tiles(
    by_kernels: None, monkeypatch: pytest.MonkeyPatch, bits: int, dtype: torch.dtype, rows: int
) -> None:
    """Whatever the number of rows, and of tiles, the last of them narrower."""
    monkeypatch.setattr("kvstitch.service.worker.kernels.cpu.weight.TILE", 64 * GROUP)
    x, (bias, width) = drawn(rows, 64, seed=1).to(dtype), (drawn(2 * 224, seed=4).to(dtype), 224)
    made = quantised(drawn(2 * width, 64, seed=2), bits)
    gate_up = Weight(made.values, made.scales, bias)
    down = quantised(drawn(64, width, seed=3), bits)
    assert len(list(gate_up.tiles())) == 14
    wide = x.double() @ exact(gate_up).t() + bias.double()
    near = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert_close("a product", cpu_linear.quantised_linear(x, gate_up).double(), wide, near)
    gate, up = wide.chunk(2, dim=-1)
    expected = (F.silu(gate) * up) @ exact(down).t()
    ours = run(cpu_linear.quantised_gated_mlp(x, gate_up, down, F.silu))
    assert_close("an MLP", ours.double(), expected, near)
