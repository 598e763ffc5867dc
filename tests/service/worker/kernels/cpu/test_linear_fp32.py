"""Products on a CPU with AVX2 alone, against fp64; any CPU with AVX2 can run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.kernels.cpu import cpu_linear, linear_fp32, measured, native
from kvstitch.service.worker.kernels.cpu.weight import Weight, quantised
from kvstitch.service.worker.model.load import load
from kvstitch.service.worker.model.projection import QuantisedProjection, StoredEmbedding
from kvstitch_tune.prompts import prefill_ids
from tests.service.worker.tiny import random_model, tiny_config

is_fast: Any = linear_fp32.is_fast  # what the fixture replaces
ROWS = [1, 2, 3, 4, 32, 33, linear_fp32.MOST]
BITS = [32, 16, 8, 4]


@pytest.fixture(autouse=True)
def avx2_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    if (reason := native._why_not_compiled()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(native, "module", lambda: None)
    monkeypatch.setattr(native, "has_avx2_alone", lambda: True)
    monkeypatch.setattr(linear_fp32, "is_fast", lambda: True)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def difference(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact.double()).norm() / exact.double().norm())


def stored(bits: int, outs: int, columns: int, bias: Tensor | None = None) -> Weight:
    wide = drawn(outs, columns, seed=2)
    made = Weight(wide) if bits == 32 else quantised(wide.bfloat16(), bits)
    return Weight(made.values, made.scales, bias)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("outs, columns", [(4, 32), (100, 96), (52, 2080)])
def test_it_is_the_exact_product(bits: int, rows: int, outs: int, columns: int) -> None:
    x, bias = drawn(rows, columns, seed=1), drawn(outs, seed=3)
    weight = stored(bits, outs, columns, bias)
    exact = x.double() @ weight.dequantised(torch.float32).double().t() + bias.double()
    assert linear_fp32.supports(x, weight)
    assert difference(cpu_linear.quantised_linear(x, weight), exact) < 1e-6
    rounded = linear_fp32.product(x.bfloat16(), weight)
    assert rounded.dtype == torch.bfloat16 and difference(rounded.float(), exact) < 1e-2


@pytest.mark.parametrize("bits", BITS)
def test_a_row_does_not_depend_on_its_batch(bits: int) -> None:
    x, weight = drawn(ROWS[-1], 1056, seed=1), stored(bits, 100, 1056)
    alone = torch.cat([linear_fp32.product(row[None], weight) for row in x])
    for rows in ROWS:
        if rows <= linear_fp32.FEW or bits > 4:
            assert linear_fp32.product(x[:rows], weight).equal(alone[:rows])
    if bits == 4:
        assert difference(linear_fp32.product(x, weight), alone) < 1e-6


def test_what_it_does_not_take() -> None:
    x, weight = drawn(3, 64, seed=1), drawn(8, 64, seed=2)
    assert linear_fp32.supports(x, Weight(weight))
    for rows, other in (
        (x[:0], weight),
        (x.double(), weight.double()),
        (x, weight.half()),
        (x[:, :40], weight[:, :40].contiguous()),
        (x, weight[:6]),
        (x, weight.t().contiguous().t()),
    ):
        assert not linear_fp32.supports(rows, Weight(other))


@pytest.mark.parametrize(
    ("ours", "torchs", "taken"), [(1.0, 1.0, True), (1.1, 1.0, True), (1.3, 1.0, False)]
)
def test_many_rows_go_where_they_were_measured_to_be_faster(
    monkeypatch: pytest.MonkeyPatch, ours: float, torchs: float, taken: bool
) -> None:
    weight, few = Weight(drawn(8, 64, seed=2)), drawn(32, 64, seed=1)
    times = iter([9.0, 9.0, ours, torchs, *[9.0] * 12])
    monkeypatch.setattr(linear_fp32, "is_fast", is_fast.__wrapped__)
    monkeypatch.setattr(measured, "measured", {})
    monkeypatch.setattr(measured, "_seconds", lambda _: next(times))
    assert linear_fp32.supports(drawn(33, 64, seed=1), weight) is taken
    assert linear_fp32.supports(few, weight)
    assert not linear_fp32.supports(drawn(linear_fp32.MOST + 1, 64, seed=1), weight)
    assert measured.measured == {"192 rows by a weight of 1 M": (ours, torchs)}


def test_both_ways_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measured", {})
    monkeypatch.setattr(measured, "MARGIN", 1e9)
    assert is_fast.__wrapped__()


def test_a_bfloat16_checkpoint_keeps_its_weights_and_computes_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("qwen2")
    random_model(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    decoder = load(str(tmp_path), device="cpu", dtype="float32")
    table, layer = decoder.model.get_input_embeddings(), decoder.projections[0]
    assert decoder.dtype == torch.float32 and isinstance(layer.qkv, QuantisedProjection)
    assert layer.qkv.stored.values.dtype == table.weight.dtype == torch.bfloat16
    assert isinstance(table, StoredEmbedding) and layer.qkv.stored.bits == 16
    assert max(selfcheck.check(decoder)) < 1e-4
    monkeypatch.setattr(native, "has_avx2_alone", lambda: False)
    whole = load(str(tmp_path), device="cpu", dtype="float32")
    assert whole.model.get_input_embeddings().weight.dtype == torch.float32
    ids = [5, 9, 3, 17, 4, 22, 8, 41]
    ours, theirs = (prefill_ids(each, ids).logits for each in (decoder, whole))
    assert difference(ours, theirs) < 1e-5
