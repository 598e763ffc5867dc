"""The kernel for few rows against fp64, and that a row's result is its own."""

from __future__ import annotations

import pytest
import torch

from service.worker.kernels.cpu import linear_few_rows
from tests.service.worker.tiny import assert_close

BF16 = 2**-7  # one rounding of a result of size about 1 to 2


pytestmark = pytest.mark.usefixtures("bf16_dot")


def drawn(*shape: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=random) / shape[-1] ** 0.5).bfloat16()


@pytest.mark.parametrize("rows", [*range(1, 10), 17, 64])
@pytest.mark.parametrize("outs", [1, 3, 16, 61])
@pytest.mark.parametrize("columns", [32, 96, 896, 2080])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_exact_product_rounded(rows, outs, columns, bias) -> None:
    """Every number of rows that has a path of its own, whole and broken blocks of weights."""
    x, weight = drawn(rows, columns, seed=1) * 8, drawn(outs, columns, seed=2)
    added = drawn(outs, seed=3) if bias else None
    expected = x.double() @ weight.double().t() + (0 if added is None else added.double())
    ours = linear_few_rows.linear(x, weight, added)
    assert ours.dtype == torch.bfloat16
    # What a sum in fp32 may be off, and one rounding: half a unit in the last place.
    allowed = expected.abs() * 2**-8 * 1.01 + 1e-5
    assert bool(((ours.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("columns", [896, 2080])
def test_a_row_does_not_depend_on_its_batch(columns: int) -> None:
    """Nor on the runs of columns that a larger batch goes through."""
    x, weight = drawn(33, columns, seed=1), drawn(200, columns, seed=2)
    alone = torch.cat([linear_few_rows.linear(row[None], weight) for row in x])
    for rows in (*range(2, 10), 33):
        assert linear_few_rows.linear(x[:rows], weight).equal(alone[:rows])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads: int) -> None:
    x, weight = drawn(21, 1056, seed=1), drawn(1003, 1056, seed=2)
    assert weight.numel() >= linear_few_rows.MIN_PARALLEL
    before = torch.get_num_threads()
    expected = linear_few_rows.linear(x, weight)
    try:
        torch.set_num_threads(threads)
        assert linear_few_rows.linear(x, weight).equal(expected)
    finally:
        torch.set_num_threads(before)


def test_slices_are_read_where_they_lie() -> None:
    """Rows of a weight that are further apart than they are long, and rows of x that are."""
    whole, wide_x = drawn(40, 128, seed=1), drawn(3, 128, seed=2)
    x, weight = wide_x[:, :64], whole[5:30, 32:96]
    ours = linear_few_rows.linear(x, weight)
    assert_close("linear_few_rows", ours.double(), x.double() @ weight.double().t(), BF16)


def test_ties_infinities_and_what_is_no_number() -> None:
    weight = torch.zeros(4, 32, dtype=torch.bfloat16)
    weight[0, 0], weight[0, 1] = 1.0, 2**-9  # half a unit in the last place of 1: to even
    weight[1, 0], weight[1, 1] = 1 + 2**-7, 2**-9 + 2**-12
    weight[2, 0], weight[3, 0] = float("inf"), float("nan")
    out = linear_few_rows.linear(torch.ones(1, 32, dtype=torch.bfloat16), weight)[0]
    assert out[0] == 1.0 and out[1] == 1 + 2**-7 and out[2] == float("inf") and out[3].isnan()


def test_other_products_are_torchs() -> None:
    x, weight = drawn(2, 64, seed=1), drawn(8, 64, seed=2)
    assert linear_few_rows.supports(x, weight)
    assert not linear_few_rows.supports(x.float(), weight.float())
    assert not linear_few_rows.supports(x[:, :40], weight[:, :40])
    assert not linear_few_rows.supports(drawn(linear_few_rows.MAX_ROWS + 1, 64, seed=1), weight)
    assert not linear_few_rows.supports(
        drawn(linear_few_rows.MAX_BATCH + 1, 64, seed=1), weight, batch=True
    )
    assert not linear_few_rows.supports(x, weight.t().contiguous().t())
