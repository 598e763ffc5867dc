"""The kernel for many rows by bfloat16 dot products against fp64, and that a row's result is its
own. Who uses it when: `test_many_rows_bf16_use`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import linear_many_rows_bf16
from service.worker.steps import run
from tests.service.worker.conftest import use_bf16_dot
from tests.service.worker.tiny import assert_close

BF16 = 2**-7  # one rounding of a result of size about 1 to 2
BLOCK = (
    linear_many_rows_bf16.TILES * linear_many_rows_bf16.ROWS
)  # rows that a weight goes by at once


@pytest.fixture(autouse=True)
def fast_bf16(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use_bf16_dot(compiled, monkeypatch, True)


def drawn(*shape: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=random) / shape[-1] ** 0.5).bfloat16()


def assert_rounded(ours: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """ours is the exact product, off by what a sum in fp32 may be and by one rounding: half a unit
    in the last place."""
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert ours.dtype == torch.bfloat16 and ours.shape == expected.shape
    allowed = expected.abs() * 2**-8 * 1.01 + 1e-5
    assert bool(((ours.double() - expected).abs() <= allowed).all())


# Registers of a tile: one, two and three, whole and broken; a second tile; a second block and a
# third. The last two widths are gone through in four parts from 192 rows on, of which the last is
# shorter, or not.
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 48, 49, BLOCK, BLOCK + 1, 400])
@pytest.mark.parametrize("outs", [32, 96])
@pytest.mark.parametrize("columns", [32, 512, 896, 4800, 4864])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_exact_product_rounded(rows, outs, columns, bias) -> None:
    x, weight = drawn(rows, columns, seed=1) * 8, drawn(outs, columns, seed=2)
    added = drawn(outs, seed=3) if bias else None
    assert_rounded(linear_many_rows_bf16.linear(x, weight, added), x, weight, added)


@pytest.mark.parametrize("rows", [50, 200])
def test_slices_are_read_where_they_lie(rows: int) -> None:
    """Rows of a weight that are further apart than they are long, and rows of x that are."""
    whole, wide_x = drawn(70, 128, seed=1), drawn(rows, 128, seed=2)
    x, weight = wide_x[:, :64], whole[5:69, 32:96]
    assert_rounded(linear_many_rows_bf16.linear(x, weight), x, weight)
    turned = wide_x.t().contiguous().t()[:, :64]
    assert linear_many_rows_bf16.linear(turned, weight).equal(
        linear_many_rows_bf16.linear(x, weight)
    )


@pytest.mark.parametrize("rows", [1, 50, 200])
def test_results_are_written_where_they_belong(rows: int) -> None:
    """Into some columns and rows of more; what lies around them is left alone."""
    x, weight, bias = drawn(rows, 64, seed=1), drawn(32, 64, seed=2), drawn(32, seed=3)
    whole = torch.full((rows + 20, 96), 3.0, dtype=torch.bfloat16)
    part = whole[10:-10, 32:64]
    linear_many_rows_bf16.product(linear_many_rows_bf16.pack(x), weight, part, bias)
    assert part.equal(linear_many_rows_bf16.linear(x, weight, bias))
    part.fill_(3.0)
    assert bool((whole == 3.0).all())


@pytest.mark.parametrize("columns", [896, 4800])
def test_a_row_does_not_depend_on_its_batch(columns: int) -> None:
    """Nor on the parts of the columns that more rows go through."""
    x, weight = drawn(400, columns, seed=1), drawn(96, columns, seed=2)
    whole = linear_many_rows_bf16.linear(x, weight)
    for rows in (1, 16, 20, 40, 48, 49, 100, BLOCK, BLOCK + 1):
        assert linear_many_rows_bf16.linear(x[:rows], weight).equal(whole[:rows])
        assert linear_many_rows_bf16.linear(x[-rows:], weight).equal(whole[-rows:])


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(threads: int) -> None:
    x, weight, bias = drawn(250, 2080, seed=1), drawn(1008, 2080, seed=2), drawn(1008, seed=3)
    parts = mlp(hidden=64, width=480)
    before = torch.get_num_threads()
    expected = (
        linear_many_rows_bf16.linear(x, weight, bias),
        run(linear_many_rows_bf16.gated_mlp(x[:, :64], *parts)),
    )
    try:
        torch.set_num_threads(threads)
        assert linear_many_rows_bf16.linear(x, weight, bias).equal(expected[0])
        assert run(linear_many_rows_bf16.gated_mlp(x[:, :64], *parts)).equal(expected[1])
    finally:
        torch.set_num_threads(before)


def test_ties_infinities_and_what_is_no_number() -> None:
    weight = torch.zeros(32, 32, dtype=torch.bfloat16)
    weight[0, 0], weight[0, 1] = 1.0, 2**-9  # half a unit in the last place of 1: to even
    weight[1, 0], weight[1, 1] = 1 + 2**-7, 2**-9 + 2**-12
    weight[2, 0], weight[3, 0] = float("inf"), float("nan")
    out = linear_many_rows_bf16.linear(torch.ones(50, 32, dtype=torch.bfloat16), weight)
    assert bool((out == out[0]).all(0)[torch.arange(32) != 3].all())
    row = out[-1]
    assert row[0] == 1.0 and row[1] == 1 + 2**-7 and row[2] == float("inf") and row[3].isnan()


def mlp(hidden: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """gate and up, halves of one weight, and down; all with rows further apart than they are
    long."""
    gate, up = drawn(2 * width, hidden + 64, seed=2)[:, :hidden].chunk(2)
    return gate, up, drawn(hidden, width + 32, seed=3)[:, :width]


# The rows of an MLP go through it in blocks, of which the last is broken.
@pytest.mark.parametrize("rows", [1, 16, 47, 64, BLOCK, BLOCK + 1, 500])
@pytest.mark.parametrize("hidden, width", [(128, 1120), (96, 32), (896, 64)])
def test_an_mlp_is_the_exact_one_rounded(rows: int, hidden: int, width: int) -> None:
    """Its inside is rounded to bfloat16 once, and so is its result."""
    x, (gate, up, down) = drawn(rows, hidden, seed=1) * 8, mlp(hidden, width)
    ours = run(linear_many_rows_bf16.gated_mlp(x, gate, up, down))
    inner = F.silu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    expected = inner.bfloat16().double() @ down.double().t()
    assert ours.dtype == torch.bfloat16
    # An inside that fp32 rounds to the other side is off by a unit; it is one of many.
    assert_close("mlp, inside rounded", ours.double(), expected, BF16)
    assert_close("mlp", ours.double(), inner @ down.double().t(), 2 * BF16)


@pytest.mark.parametrize("rows", [20, 193, 250])
def test_pauses_and_blocks_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, parts = drawn(rows, 96, seed=1) * 8, mlp(96, 480)
    whole = run(linear_many_rows_bf16.gated_mlp(x, *parts))
    # A strip at a time, and steps that the width and the rows of down are no multiple of.
    for pause in (1, 7 * 32 * rows * 192, 11 * 32 * rows * 192):
        monkeypatch.setattr(linear_many_rows_bf16, "PAUSE", pause)
        assert sum(1 for _ in linear_many_rows_bf16.gated_mlp(x, *parts)) > 0
        assert run(linear_many_rows_bf16.gated_mlp(x, *parts)).equal(whole)
    for tiles in (1, 3):
        monkeypatch.setattr(
            linear_many_rows_bf16, "ROOM", tiles * 2 * linear_many_rows_bf16.ROWS * 96
        )
        assert run(linear_many_rows_bf16.gated_mlp(x, *parts)).equal(whole)


def test_it_pauses_for_many_rows_and_not_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what they cost: 48 rows of this MLP are 45 million multiplications."""
    monkeypatch.setattr(linear_many_rows_bf16, "PAUSE", 60_000_000)
    parts = mlp(64, 4864)
    for rows, least, most in ((1, 0, 0), (48, 0, 0), (192, 2, 5), (400, 5, 11)):
        pauses = sum(1 for _ in linear_many_rows_bf16.gated_mlp(drawn(rows, 64, seed=1), *parts))
        assert least <= pauses <= most, (rows, pauses)


@pytest.mark.parametrize("value", [0.0, -0.0, 1, -1, 12, -12, -30, 80, -80, -100, -200, -3e38])
def test_silu_is_torchs(value: float) -> None:
    ours, expected = activated(value), F.silu(torch.tensor(value).bfloat16().double())
    assert float((ours - expected).abs()) <= float(expected.abs()) * 2**-7 + 1e-30


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_silu_of_what_is_no_number_is_torchs(value: float) -> None:
    expected = F.silu(torch.tensor(value, dtype=torch.bfloat16)).double()
    assert activated(value).equal(expected) or expected.isnan()
    assert bool(activated(value).isnan()) == bool(expected.isnan())


def activated(value: float) -> Tensor:
    """The one number of all rows of an MLP in which gate gives `value` and up gives 1."""
    x = torch.zeros(20, 32, dtype=torch.bfloat16)
    gate, up = torch.zeros(2, 32, 32, dtype=torch.bfloat16)
    x[:, 0], gate[:, 0], up[:, 0] = 1, value, 1
    out = run(linear_many_rows_bf16.gated_mlp(x, gate, up, torch.full_like(gate, 1 / 32)))
    same = out == out[0, 0]
    assert bool((same | out.isnan()).all()) and len(out.isnan().unique()) == 1
    return out[0, 0].double()
