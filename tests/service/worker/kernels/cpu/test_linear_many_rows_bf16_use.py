"""Who uses the kernel for many rows by bfloat16 dot products, and where it is left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import (
    cpu_linear,
    linear_few_rows,
    linear_many_rows_bf16,
    linear_many_rows_fp32,
    native,
)
from service.worker.model.decoder import DecoderModel
from service.worker.model.families import decoder_for
from service.worker.steps import run
from tests.service.worker.conftest import use_bf16_dot
from tests.service.worker.tiny import assert_close, random_model, tiny_config

BF16 = 2**-7  # one rounding of a result of size about 1 to 2
WIDTHS: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "vocab_size": 320,
}  # fmt: skip


@pytest.fixture
def fast_bf16(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This CPU multiplies bfloat16 faster than fp32."""
    use_bf16_dot(compiled, monkeypatch, True)


@pytest.fixture
def only_many_rows(fast_bf16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no kernel for few rows."""
    monkeypatch.setattr(linear_few_rows, "supports", lambda *_, **__: False)


def drawn(*shape: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=random) / shape[-1] ** 0.5).bfloat16()


def weights() -> tuple[Tensor, Tensor, Tensor]:
    """gate, up and down."""
    return drawn(96, 64, seed=2), drawn(96, 64, seed=3), drawn(64, 96, seed=4)


@pytest.mark.parametrize("there, amd", [(1, 1), (1, 0), (0, 1)])
def test_what_the_cpu_is_decides_and_nothing_else(
    there: int, amd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts on one machine give the same numbers."""
    monkeypatch.setattr(native, "module", lambda: SimpleNamespace(cpu=lambda: (1, there, amd)))
    assert native.has_bf16_dot.__wrapped__() is bool(there and amd)
    monkeypatch.setattr(native, "module", lambda: None)
    assert native.has_bf16_dot.__wrapped__() is False


def test_other_products_are_not_its_own(fast_bf16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = drawn(60, 64, seed=1), drawn(32, 64, seed=2)
    assert linear_many_rows_bf16.supports(x, weight)
    assert not linear_many_rows_bf16.supports(x.float(), weight.float())
    assert not linear_many_rows_bf16.supports(x[:, :40], weight[:, :40])
    assert not linear_many_rows_bf16.supports(x, weight[:20])
    assert not linear_many_rows_bf16.supports(x, weight.t().contiguous().t())
    assert not linear_many_rows_bf16.supports(x, weight, weight.float())
    monkeypatch.setattr(native, "has_bf16_dot", lambda: False)
    assert not linear_many_rows_bf16.supports(x, weight)


def test_other_mlps_are_not_its_own(fast_bf16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, (gate, up, down) = drawn(60, 64, seed=1), weights()
    supports = linear_many_rows_bf16.supports_gated_mlp
    assert supports(x, gate, up, down, F.silu)
    assert not supports(x, gate, up, down, F.gelu)
    assert not supports(x, gate, up, down, torch.nn.SiLU())  # not known by its name
    assert not supports(x.float(), gate.float(), up.float(), down.float(), F.silu)
    assert not supports(x, gate, up.clone().float(), down, F.silu)
    assert not supports(x[:, :40], gate[:, :40], up[:, :40], down[:40], F.silu)
    assert not supports(x, gate[:80], up[:80], down[:, :80], F.silu)
    assert not supports(x, gate, up, down[:40], F.silu)
    assert not supports(x, gate, up, down.t().contiguous().t(), F.silu)
    further_apart = torch.cat([up, up], 1)[:, :64]
    assert not supports(x, gate, further_apart, down, F.silu)
    monkeypatch.setattr(native, "has_bf16_dot", lambda: False)
    assert not supports(x, gate, up, down, F.silu)


def test_it_is_what_bfloat16_goes_through(only_many_rows: None) -> None:
    """`wide` hands over what it serves, and the rest to those that come after it."""
    x, bias, (gate, up, down) = drawn(70, 64, seed=1), drawn(96, seed=5), weights()
    assert cpu_linear.linear(x, gate, bias).equal(linear_many_rows_bf16.linear(x, gate, bias))
    assert cpu_linear.supports_gated_mlp(x, gate, up, down, F.silu)
    ours = run(cpu_linear.gated_mlp(x, gate, up, down, F.silu))
    assert ours.equal(run(linear_many_rows_bf16.gated_mlp(x, gate, up, down)))
    gelu = run(cpu_linear.gated_mlp(x, gate, up, down, F.gelu))
    assert gelu.equal(run(linear_many_rows_fp32.gated_mlp(x, gate, up, down, F.gelu)))


def test_a_cpu_that_has_it_is_not_slow_at_bfloat16(
    fast_bf16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel does not take is then torch's, in bfloat16."""
    monkeypatch.setattr(
        cpu_linear, "_has_slow_bf16_products", cpu_linear._has_slow_bf16_products.__wrapped__
    )
    x, bias, (gate, up, down) = drawn(70, 64, seed=1), drawn(96, seed=5), weights()
    x, gate = x[:, :40], gate[:, :40]
    assert not cpu_linear.has_slow_16_bit_products(x) and not cpu_linear.supports_gated_mlp(
        x, gate, up, down, F.silu
    )
    assert cpu_linear.linear(x, gate, bias).equal(F.linear(x, gate, bias))


@pytest.mark.parametrize("act, named", [("silu", True), ("swish", True), ("gelu", False)])
def test_an_adapter_calls_silu_by_its_name(
    act: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_for(random_model(tiny_config("qwen3", hidden_act=act, **WIDTHS)))
    asked = Mock(return_value=False)
    monkeypatch.setattr(cpu_linear, "supports_gated_mlp", asked)
    decoder.finish(0, torch.ones(30, 64), torch.ones(30, 96))
    (call,) = asked.call_args_list
    assert call.args[4] is (F.silu if named else decoder.blocks[0].mlp.act_fn)


def test_rows_of_a_model_go_through_it(fast_bf16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a prompt; rows of a batch never do, and do not depend on its size."""
    decoder = decoder_for(random_model(tiny_config("qwen3", **WIDTHS), dtype=torch.bfloat16))
    x, attended = (
        drawn(linear_few_rows.MAX_BATCH, 64, seed=1),
        drawn(linear_few_rows.MAX_BATCH, 96, seed=2),
    )
    linear, mlp = (
        Mock(wraps=linear_many_rows_bf16.linear),
        Mock(wraps=linear_many_rows_bf16.gated_mlp),
    )
    monkeypatch.setattr(linear_many_rows_bf16, "linear", linear)
    monkeypatch.setattr(linear_many_rows_bf16, "gated_mlp", mlp)
    whole = steps_of(decoder, x, attended, batch=True)
    for size in (1, 7, linear_few_rows.MAX_ROWS, linear_few_rows.MAX_ROWS + 1):
        part = steps_of(decoder, x[:size], attended[:size], batch=True)
        assert all(some.equal(every[:size]) for some, every in zip(part, whole, strict=True))
    assert not linear.called and not mlp.called
    own = steps_of(decoder, x, attended, batch=False)
    assert linear.call_count == 3 and mlp.call_count == 1
    for ours, theirs in zip(own, whole, strict=True):
        assert_close("either kernel", ours.double(), theirs.double(), 4 * BF16)


def steps_of(decoder: DecoderModel, x: Tensor, attended: Tensor, *, batch: bool) -> list[Tensor]:
    q, k, v = decoder.qkv(0, x, batch=batch)
    out = decoder.finish(0, x, attended, batch=batch)
    return [q, k, v, out, decoder.logits(x, batch=batch)]
