"""Models whose weights are quantised when they are loaded, or by a library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kvstitch.service import settings
from kvstitch.service.errors import ModelRefused
from kvstitch.service.shared.model_fingerprint import QUANTISED, fingerprint
from kvstitch.service.worker.forward import decode, selfcheck
from kvstitch.service.worker.forward.decode import kernel_weights
from kvstitch.service.worker.kernels.cpu import decode_step
from kvstitch.service.worker.kernels.cpu.weight import GROUP
from kvstitch.service.worker.model import folder_checks
from kvstitch.service.worker.model.addressing import Addressing
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.load import load
from kvstitch.service.worker.model.projection import (
    BITS,
    DenseProjection,
    ModuleProjection,
    QuantisedProjection,
    quantise,
)
from kvstitch_tune.prompts import kv_pool, prefill_ids
from tests.service.worker.forward.test_decode import Running, decoded
from tests.service.worker.tiny import difference, random_model, tiny_config, tiny_of

IDS = [5, 9, 3, 17, 4, 22, 8, 41, 13, 2, 30, 7]
WIDTHS: dict[str, Any] = {"hidden_size": 192, "intermediate_size": 96, "head_dim": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with biases in its attention."""
    path = tmp_path_factory.mktemp("model")
    config = tiny_config("llama", **WIDTHS)
    config.attention_bias = True
    random_model(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=sorted(BITS))
def quantised(request: pytest.FixtureRequest, folder: Path) -> DecoderModel:
    return load(str(folder), device="cpu", quantize=request.param)


def full_prefill(decoder: DecoderModel, ids: list[int] = IDS) -> Tensor:
    return prefill_ids(decoder, ids).logits.float()


def test_it_computes_what_transformers_computes_with_the_same_weights(
    quantised: DecoderModel, folder: Path
) -> None:
    selfcheck.check(quantised)
    assert all(isinstance(layer.qkv, QuantisedProjection) for layer in quantised.projections)
    plain = full_prefill(load(str(folder), device="cpu"))
    assert difference(full_prefill(quantised), plain) > 1e-3  # and not with others


@pytest.mark.parametrize("family", ["granite", "olmo2", "phi3", "qwen2", "qwen3"])
def test_families(family: str) -> None:
    """Biases, norms, fused projections and multipliers."""
    model = random_model(tiny_config(family))
    quantise(model, 8)
    decoder = decoder_for(model)
    assert isinstance(decoder.projections[0].down, QuantisedProjection)
    selfcheck.check(decoder)


def test_weights_that_differ_are_seen_by_the_start_up_check(folder: Path) -> None:
    """The check compares with modules that share the projections' weights, so spoil only one."""
    decoder = load(str(folder), device="cpu", quantize="int8")
    module = decoder.blocks[2].mlp.down_proj
    module.weight = type(module.weight)(module.weight.values, module.weight.scales * -1)
    with pytest.raises(ModelRefused, match="differs from transformers"):
        selfcheck.check(decoder)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernel", "operations"])
def test_decoding_goes_on_as_prefill_would(
    quantised: DecoderModel, monkeypatch: pytest.MonkeyPatch, compiled: Any, kernels: bool
) -> None:
    weights, pool = kernel_weights(quantised), kv_pool(quantised, 64)
    assert weights is not None and decode_step.supports(weights, pool.k, pool.v)
    if not kernels:
        monkeypatch.setattr(decode, "kernel_for", lambda *_: None)
    kv = pool.reserve(len(IDS))
    assert kv is not None
    prefill_ids(quantised, IDS[:-1], kv=kv)
    kv.set_length(len(IDS) - 1)
    ours = decode.decode_step(quantised, [Running(kv, len(IDS) - 1, [IDS[-1]])])[0]
    expected = full_prefill(quantised).flatten()
    assert float((ours - expected).norm() / expected.norm()) < 0.05


def test_a_sequence_does_not_depend_on_its_batch(quantised: DecoderModel, compiled: Any) -> None:
    model = tiny_of(quantised.model)
    model.decoder = quantised
    together, alone = decoded(model, (7, 40, 3, 9), False), decoded(model, (40,), False)
    assert together[:, 1].equal(alone[:, 0])


def test_in_float32_without_kernels(folder: Path) -> None:
    decoder = load(str(folder), device="cpu", dtype="float32", quantize="int8")
    theirs, stitched = selfcheck.check(decoder)
    assert max(theirs, stitched) < 1e-4


def test_chunks_are_told_apart(folder: Path, quantised: DecoderModel) -> None:
    ways = ["off", *BITS]
    assert set(BITS) == set(QUANTISED)
    keys = set()
    for way in ways:
        found = fingerprint(str(folder), way)
        addressing = Addressing(quantised, fingerprint=found, codec="raw")
        keys.add(addressing.document(IDS, "none", [], "").key)
    assert len(keys) == len(ways)
    assert fingerprint(str(folder)) == fingerprint(str(folder), "off")


def test_the_setting_reaches_the_worker(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("KVSTITCH_QUANTIZE", "int8")
    assert settings.load().worker(folder, "ipc://x").quantize == "int8"


class Halved(nn.Module):
    """A library's module that keeps twice the weight it multiplies by."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed, self.bias = linear.weight.detach() * 2, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.packed / 2, self.bias)


def test_modules_of_a_library_are_called(folder: Path) -> None:
    plain = load(str(folder), device="cpu", dtype="bfloat16")
    expected = full_prefill(plain)
    for block in plain.model.model.layers:
        for name, module in list(block.named_modules()):
            if isinstance(module, nn.Linear):
                block.set_submodule(name, Halved(module))
    decoder = decoder_for(plain.model)
    kinds = {type(decoder.projections[0].qkv), type(decoder.projections[0].down)}
    assert kinds == {ModuleProjection} and isinstance(decoder.head, DenseProjection)
    assert kernel_weights(decoder) is None  # so no kernel decodes by itself
    selfcheck.check(decoder)
    assert difference(full_prefill(decoder), expected) < 0.05


REFUSED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a method that transformers would skip": (
        {"quantization_config": {"quant_method": "of_tomorrow"}}, "off", "cpu",
        "quantised by of_tomorrow, which is not served",
    ),
    "a package": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "off", "cpu",
        "needs gptqmodel and optimum: pip install gptqmodel optimum",
    ),
    "a package, awq": (
        {"quantization_config": {"quant_method": "awq"}}, "off", "cpu", "pip install .*gptqmodel",
    ),
    "a GPU": (
        {"quantization_config": {"quant_method": "fp8"}}, "off", "cpu",
        "quantised by fp8, which needs a GPU, and the device is a CPU: give --device cuda",
    ),
    "a GPU, bitsandbytes without its name": (
        {"quantization_config": {"load_in_4bit": True}}, "off", "cpu", "bitsandbytes.* a GPU",
    ),
    "a GPU, torchao": (
        {"quantization_config": {
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": "Float8WeightOnlyConfig", "_data": {}}},
        }}, "off", "cpu", "Float8WeightOnlyConfig, which needs a GPU",
    ),
    "experts": (
        {"quantization_config": {"quant_method": "torchao"}, "num_local_experts": 4}, "off", "cpu",
        "it has experts, which is not served",
    ),
    "twice": (
        {"quantization_config": {"quant_method": "torchao"}}, "int8", "cpu", "quantised already",
    ),
    "experts when loading": ({"num_experts": 4}, "int8", "cpu", "does not reach"),
    "narrow": ({"intermediate_size": 80}, "int4", "cpu", "intermediate_size is 80"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_served_is_refused_before_weights_are_read(
    folder: Path, tmp_path: Path, why: str
) -> None:
    assert folder_checks.GROUP == GROUP
    changes, quantize, device, says = REFUSED[why]
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelRefused, match=says):
        load(str(tmp_path), device=device, quantize=quantize)


@pytest.mark.parametrize(
    "kind, projection",
    [
        ("Int8WeightOnlyConfig", QuantisedProjection),
        ("Int8DynamicActivationInt8WeightConfig", ModuleProjection),
    ],
)
def test_checkpoints_of_torchao(
    folder: Path, tmp_path: Path, kind: str, projection: type[Any]
) -> None:
    """Quantised and written by transformers, and served: by kernels where these read the weights.

    torchao comes with the extra `quantised`, which the tools for tests leave out.
    """
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import AutoModelForCausalLM, TorchAoConfig

    config = TorchAoConfig(quant_type=getattr(torchao, kind)())
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=config
    )
    model.save_pretrained(tmp_path)
    decoder = load(str(tmp_path), device="cpu")
    assert isinstance(decoder.projections[0].qkv, projection)
    selfcheck.check(decoder)
    plain = full_prefill(load(str(folder), device="cpu"))
    off = full_prefill(decoder) - plain
    assert 1e-4 < float(off.norm() / plain.norm()) < 0.2
    assert fingerprint(str(tmp_path)) != fingerprint(str(folder))
