"""The kernel for many rows against fp64, and that a row's result is its own."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import (
    cpu_linear,
    linear_few_rows,
    linear_many_rows_fp32,
    native,
)
from service.worker.model.decoder import DecoderModel
from service.worker.model.families import decoder_for
from service.worker.steps import run
from tests.service.worker.tiny import assert_close, random_model, tiny_config

BF16 = 2**-7  # one rounding of a result of size about 1 to 2


pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def slow_bf16(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this CPU is, it multiplies bfloat16 slower than fp32, and has the kernel."""
    monkeypatch.setattr(native, "has_bf16_dot", lambda: False)
    monkeypatch.setattr(cpu_linear, "_has_slow_bf16_products", lambda: True)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=random) / shape[-1] ** 0.5).bfloat16()


# Registers of a tile: one, two and three, whole and broken; a second tile, likewise.
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33, 48, 49, 96, 130])
@pytest.mark.parametrize("outs", [16, 80])
@pytest.mark.parametrize("columns", [32, 512, 896, 1056])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_exact_product_rounded(rows, outs, columns, bias) -> None:
    x, weight = drawn(rows, columns, seed=1) * 8, drawn(outs, columns, seed=2)
    added = drawn(outs, seed=3) if bias else None
    expected = x.double() @ weight.double().t() + (0 if added is None else added.double())
    ours = linear_many_rows_fp32.linear(x, weight, added)
    assert ours.dtype == torch.bfloat16
    # What a sum in fp32 may be off, and one rounding: half a unit in the last place.
    allowed = expected.abs() * 2**-8 * 1.01 + 1e-5
    assert bool(((ours.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("outs", [1, 7, 8, 61])
@pytest.mark.parametrize("rows", [5, 60])
def test_any_number_of_weight_rows_also_added(outs: int, rows: int) -> None:
    """Broken blocks of weights; what lies behind the last result is left alone."""
    x, weight = drawn(rows, 544, seed=1), drawn(outs, 544, seed=2)
    tiles = linear_many_rows_fp32.pack(x)
    room = torch.full((len(tiles) * outs * linear_many_rows_fp32.ROWS + 64,), 3.0)
    out = room[:-64].view(len(tiles), outs, linear_many_rows_fp32.ROWS).zero_()
    for times in (1, 2):
        linear_many_rows_fp32.product(tiles, rows, weight, add_to=out)
        got = out.transpose(1, 2).reshape(-1, outs)[:rows]
        assert_close(
            "linear_many_rows_fp32", got.double(), times * (x.double() @ weight.double().t()), 1e-5
        )
    assert bool((room[-64:] == 3.0).all())


@pytest.mark.parametrize("columns", [896, 1056])
def test_a_row_does_not_depend_on_its_batch(columns: int) -> None:
    x, weight = drawn(130, columns, seed=1), drawn(208, columns, seed=2)
    whole = linear_many_rows_fp32.linear(x, weight)
    for rows in (1, 16, 20, 40, 48, 49, 100):
        assert linear_many_rows_fp32.linear(x[:rows], weight).equal(whole[:rows])
        assert linear_many_rows_fp32.linear(x[-rows:], weight).equal(whole[-rows:])


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(threads: int) -> None:
    x, weight = drawn(70, 1056, seed=1), drawn(1008, 1056, seed=2)
    before = torch.get_num_threads()
    expected = linear_many_rows_fp32.linear(x, weight)
    try:
        torch.set_num_threads(threads)
        assert linear_many_rows_fp32.linear(x, weight).equal(expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [3, 64, 150])
def test_an_mlp_in_steps_is_the_exact_one_rounded(rows: int) -> None:
    """Also of an intermediate size that is no multiple of a step, and weights that are views."""
    x, gate_and_up = drawn(rows, 128, seed=1) * 4, drawn(2 * 1120, 128, seed=2)
    down = drawn(128, 1120 + 32, seed=3)[:, :1120]
    gate, up = gate_and_up.chunk(2)
    steps = linear_many_rows_fp32.gated_mlp(x, gate, up, down, F.silu)
    inner = F.silu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    assert_close("mlp", run(steps).double(), inner @ down.double().t(), BF16)


def test_slices_are_read_where_they_lie() -> None:
    """Rows of a weight that are further apart than they are long, and rows of x that are."""
    whole, wide_x = drawn(70, 128, seed=1), drawn(50, 128, seed=2)
    x, weight = wide_x[:, :64], whole[5:69, 32:96]
    ours = linear_many_rows_fp32.linear(x, weight)
    assert_close("linear_many_rows_fp32", ours.double(), x.double() @ weight.double().t(), BF16)


def test_ties_infinities_and_what_is_no_number() -> None:
    weight = torch.zeros(16, 32, dtype=torch.bfloat16)
    weight[0, 0], weight[0, 1] = 1.0, 2**-9  # half a unit in the last place of 1: to even
    weight[1, 0], weight[1, 1] = 1 + 2**-7, 2**-9 + 2**-12
    weight[2, 0], weight[3, 0] = float("inf"), float("nan")
    out = linear_many_rows_fp32.linear(torch.ones(50, 32, dtype=torch.bfloat16), weight)
    assert bool((out == out[0]).all(0)[torch.arange(16) != 3].all())
    row = out[-1]
    assert row[0] == 1.0 and row[1] == 1 + 2**-7 and row[2] == float("inf") and row[3].isnan()


def test_it_is_what_bfloat16_goes_through(slow_bf16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wide` hands over what it serves where such a CPU is slow at bfloat16, and nothing else."""
    x, gate, up = drawn(70, 64, seed=1), drawn(96, 64, seed=2), drawn(96, 64, seed=3)
    down, bias = drawn(64, 96, seed=4), drawn(96, seed=5)
    assert cpu_linear.linear(x, gate, bias).equal(linear_many_rows_fp32.linear(x, gate, bias))
    assert cpu_linear.supports_gated_mlp(x, gate, up, down, F.silu)
    mlp = run(cpu_linear.gated_mlp(x, gate, up, down, F.silu))
    assert mlp.equal(run(linear_many_rows_fp32.gated_mlp(x, gate, up, down, F.silu)))
    monkeypatch.setattr(cpu_linear, "_has_slow_bf16_products", lambda: False)
    assert cpu_linear.linear(x, gate, bias).equal(F.linear(x, gate, bias))
    assert not cpu_linear.supports_gated_mlp(x, gate, up, down, F.silu)


def test_rows_of_a_batch_do_not_depend_on_its_size(
    slow_bf16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to as many as are decoded together; a prompt's own rows take what is fastest for them."""
    decoder = decoder_for(random_model(tiny_config("qwen3", **WIDTHS), dtype=torch.bfloat16))
    x, attended = (
        drawn(linear_few_rows.MAX_BATCH, 64, seed=1),
        drawn(linear_few_rows.MAX_BATCH, 96, seed=2),
    )
    used = Mock(wraps=linear_many_rows_fp32.linear)
    monkeypatch.setattr(linear_many_rows_fp32, "linear", used)
    whole = steps_of(decoder, x, attended, batch=True)
    for size in (1, 7, linear_few_rows.MAX_ROWS, linear_few_rows.MAX_ROWS + 1):
        part = steps_of(decoder, x[:size], attended[:size], batch=True)
        assert all(some.equal(every[:size]) for some, every in zip(part, whole, strict=True))
    assert not used.called
    own = steps_of(decoder, x, attended, batch=False)
    assert used.call_count
    for ours, theirs in zip(own, whole, strict=True):
        assert_close("either kernel", ours.double(), theirs.double(), 4 * BF16)


WIDTHS: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "vocab_size": 320,
}  # fmt: skip


def steps_of(decoder: DecoderModel, x: Tensor, attended: Tensor, *, batch: bool) -> list[Tensor]:
    q, k, v = decoder.qkv(0, x, batch=batch)
    out = decoder.finish(0, x, attended, batch=batch)
    return [q, k, v, out, decoder.logits(x, batch=batch)]


def test_other_products_are_torchs(slow_bf16: None) -> None:
    x, weight = drawn(60, 64, seed=1), drawn(32, 64, seed=2)
    assert linear_many_rows_fp32.supports(x, weight)
    assert not linear_many_rows_fp32.supports(x.float(), weight.float())
    assert not linear_many_rows_fp32.supports(x[:, :40], weight[:, :40])
    assert not linear_many_rows_fp32.supports(x, weight[:20])
    assert not linear_many_rows_fp32.supports(x, weight.t().contiguous().t())
    assert not linear_many_rows_fp32.supports(x, weight, weight.float())
