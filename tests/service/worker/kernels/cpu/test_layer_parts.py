"""A layer in two calls, and a pass in one, against the operations one by one: the same bytes."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward import attention_pass as passes
from kvstitch.service.worker.kernels.cpu import (
    linear_few_rows,
    linear_many_rows_bf16,
    prefill_attention,
)
from kvstitch.service.worker.methods.fusion.question_scout import Method as QuestionScout
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.projection import quantise
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    FAMILIES,
    NO_HEAD_DIM,
    PLAIN_FAMILIES,
    Q,
    S,
    Tiny,
    random_model,
    rope_of,
    tiny_config,
    tiny_of,
)

pytestmark = pytest.mark.exhaustive

WIDTHS = {"hidden_size": 192, "intermediate_size": 96}
FEW = linear_few_rows.MAX_ROWS
ROWS = (1, 2, 7, FEW, FEW + 1, linear_few_rows.MAX_BATCH, 48, 49, 193, 400)


def model_of(family: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Any:
    head_dim = {} if family in NO_HEAD_DIM else {"head_dim": 32}
    if family == "phi3":
        changes.setdefault("partial_rotary_factor", 1.0)
    if family == "llama":
        changes.setdefault("mlp_bias", False)
    config = tiny_config(family, rope_of(family), **{**WIDTHS, **head_dim, **changes})
    return random_model(config, dtype=dtype)


def one_by_one(decoder: DecoderModel) -> DecoderModel:
    view = copy.copy(decoder)
    view.parts = [None] * decoder.layers
    return view


def computed(decoder: DecoderModel, rows: int, *, batch: bool) -> list[Tensor]:
    random = torch.Generator().manual_seed(rows)
    width = decoder.heads * decoder.head_dim
    x, attended = (
        torch.randn(rows, size, generator=random).to(decoder.dtype)
        for size in (decoder.hidden, width)
    )
    return [*decoder.qkv(1, x, batch=batch), decoder.finish(1, x, attended, batch=batch)]


def assert_same_bytes(decoder: DecoderModel, rows: int, *, batch: bool = False) -> None:
    ours = computed(decoder, rows, batch=batch)
    theirs = computed(one_by_one(decoder), rows, batch=batch)
    for one, other in zip(ours, theirs, strict=True):
        assert one.isfinite().all()
        assert one.contiguous().view(torch.int16).equal(other.contiguous().view(torch.int16))


def taken(decoder: DecoderModel, rows: int, *, batch: bool = False) -> bool:
    parts = decoder.parts[1]
    return parts is not None and parts.takes(
        torch.zeros(rows, decoder.hidden).bfloat16(), batch=batch
    )


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("family", [*PLAIN_FAMILIES, "phi3"])
def test_the_bytes_are_those_of_the_operations(bf16_dot: None, family: str, batch: bool) -> None:
    """All families, with all their biases and norms, for few rows and many."""
    decoder = decoder_for(model_of(family))
    assert taken(decoder, FEW)
    for rows in ROWS:
        assert_same_bytes(decoder, rows, batch=batch)


@pytest.mark.parametrize("hidden", [32, 512, 544, 1088])
def test_norms_of_every_width(compiled: Any, hidden: int) -> None:
    """torch sets sums aside after every 512 values."""
    decoder = decoder_for(model_of("qwen3", hidden_size=hidden, num_hidden_layers=2))
    for rows in (1, 5, 60):
        assert_same_bytes(decoder, rows)


def test_gates_of_every_size(compiled: Any) -> None:
    """torch's silu makes -0 of numbers below -88.7, and its kernel for few rows rounds it."""
    decoder = decoder_for(model_of("llama"))
    gate_up = decoder.projections[1].gate_up
    gate_up.weight[: decoder.intermediate].mul_(40)  # type: ignore[union-attr]
    x = torch.randn(FEW, decoder.hidden).bfloat16()
    gates = gate_up(x)[:, : decoder.intermediate]  # type: ignore[misc]
    assert float(gates.min()) < -100 and bool((gates.abs() < 1).any())
    assert_same_bytes(decoder, FEW)
    assert_same_bytes(decoder, FEW + 1)


@pytest.mark.parametrize("bits", [8, 4])
def test_few_rows_of_quantised_weights(bf16_dot: None, bits: int) -> None:
    model = model_of("qwen2")
    quantise(model, bits)
    decoder = decoder_for(model)
    assert taken(decoder, FEW) and not taken(decoder, FEW + 1)
    for rows in (1, FEW):
        assert_same_bytes(decoder, rows)


def test_threads_change_nothing(compiled: Any) -> None:
    decoder = decoder_for(model_of("qwen3", hidden_size=1088))
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for rows in (3, 300):
                assert_same_bytes(decoder, rows)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(PLAIN_FAMILIES) - {"phi3"}))
def test_other_families_call_the_operations(family: str) -> None:
    assert decoder_for(model_of(family)).parts == [None] * 5


def test_what_is_left_to_the_operations(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not computed so at all, and rows that need a pause or do not lie side by side."""
    for model in (
        model_of("llama", torch.float32),
        model_of("llama", hidden_act="gelu"),
        model_of("llama", intermediate_size=72),
        model_of("llama", mlp_bias=True),
        model_of("phi3", partial_rotary_factor=0.5),
    ):
        assert not any(decoder_for(model).parts)
    decoder = decoder_for(model_of("llama"))
    assert decoder._updated([]).parts == [None] * 5  # what LoRA adapters add
    x = torch.zeros(FEW, 2 * decoder.hidden).bfloat16()
    parts = decoder.parts[1]
    assert parts is not None
    assert parts.takes(x[:, : decoder.hidden].contiguous(), batch=False)
    assert not parts.takes(x[:, : decoder.hidden], batch=False)
    assert not parts.takes(x[:, : decoder.hidden].float(), batch=False)
    assert not parts.takes(x[:0, : decoder.hidden].contiguous(), batch=False)
    monkeypatch.setattr(linear_many_rows_bf16, "PAUSE", 3 * 192 * 96 * (FEW + 2))
    decoder = decoder_for(model_of("llama"))
    assert taken(decoder, FEW) and not taken(decoder, FEW + 3)


def prefilled(model: Tiny, method: Any, **changes: Any) -> list[Tensor]:
    run = model.stitch(method, **changes)
    return [run.result.logits, run.result.rows, *run.k, *run.v, torch.tensor(run.result.flops)]


@pytest.mark.parametrize("together", [1, 2, 100])
def test_a_pass_of_the_question(
    bf16_dot: None, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Scores by which rows are chosen, and all that follows, however many layers a call computes;
    without the kernel where one document is not stored."""
    model = tiny_of(model_of("qwen3", num_hidden_layers=6))
    parts, n = model.decoder.parts[0], len([*S, *D1, *D2, *D3, *Q])
    assert parts is not None
    asked = Mock(wraps=prefill_attention.run_pass)
    monkeypatch.setattr(prefill_attention, "run_pass", asked)
    monkeypatch.setattr(passes, "PAUSE", together * prefill_attention.pass_cost(parts, len(Q), n))
    for method in (QuestionScout(from_depth=0.4, ratio=0.3), QuestionScout(to_depth=0.2)):
        for changes in ({}, {"prefix": D1}, {"uncached": [2]}):
            asked.reset_mock()
            ours = prefilled(model, method, **changes)
            layers = method.question_pass_layers(6).stop
            calls = 0 if "uncached" in changes else -(-layers // together)
            assert asked.call_count == calls
            with monkeypatch.context() as patched:
                patched.setattr(model.decoder, "parts", [None] * 6)
                theirs = prefilled(model, method, **changes)
            assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))
