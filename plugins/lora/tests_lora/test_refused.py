"""Adapters that would be computed wrongly are refused, in a sentence that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.model.families import decoder_for
from kvstitch_lora.folder import LoraRefused, read_config, tensor_names
from kvstitch_lora.load import load_lora
from tests.service.worker.lora_folders import PREFIX, write_lora
from tests.service.worker.tiny import Tiny, random_model, tiny, tiny_config

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
EMBEDDED = f"{PREFIX}model.embed_tokens.lora_embedding_A"


@pytest.fixture
def base() -> Tiny:
    return tiny("llama")


@pytest.fixture
def folder(base: Tiny, tmp_path: Path) -> Path:
    return write_lora(tmp_path / "own", base.model, modules=("q_proj", "down_proj"))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("peft_type", "LOHA", "of type LOHA, not LORA"),
        ("use_dora", True, "DoRA cannot be served"),
        ("bias", "lora_only", "trained biases"),
        ("lora_bias", True, "biases of LoRA modules"),
        ("modules_to_save", ["lm_head"], "modules that are saved as a whole"),
        ("trainable_token_indices", [1, 2], "embeddings of single tokens"),
        ("target_parameters", ["experts.up"], "no linear modules"),
        ("init_lora_weights", "pissa", "changes the base model, too"),
        ("r", "many", "is damaged"),
    ],
)
def test_configs(field: str, value: object, message: str, folder: Path) -> None:
    file = folder / CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(LoraRefused, match=message):
        read_config(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({EMBEDDED: torch.ones(2, 2)}), "embed_tokens.* is not served: train"),
        (lambda t: t.pop(sorted(t)[0]), "only one matrix of model.layers.0.mlp.down_proj"),
        (dict.clear, "holds no LoRA weights"),
    ],
)
def test_weights(change: Callable[[Any], Any], message: str, folder: Path) -> None:
    change_weights(folder, change)
    with pytest.raises(LoraRefused, match=message):
        tensor_names(folder)


def test_missing_and_damaged_files(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-10])
    with pytest.raises(LoraRefused, match="is damaged"):
        tensor_names(folder)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(LoraRefused, match="safe_serialization=True"):
        tensor_names(folder)
    (folder / CONFIG).unlink()
    with pytest.raises(LoraRefused, match=r"no readable adapter_config\.json"):
        read_config(folder)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: tiny_config("llama", hidden_size=72), r"this model's is \(72, 80\): give the"),
        (lambda: tiny_config("llama", num_hidden_layers=2), "model.layers.2.* does not have"),
        (lambda: tiny_config("phi3"), r"down_proj for a module of \(48, 80\), this model.s is"),
    ],
)
def test_an_adapter_of_another_model(other: Callable[[], Any], message: str, folder: Path) -> None:
    with pytest.raises(ModelRefused, match=f"LoRA adapter own: .*{message}") as refused:
        load_lora(decoder_for(random_model(other())), "own", folder)
    assert refused.value.field == "lora"


def test_a_rank_that_the_config_does_not_say(base: Tiny, folder: Path) -> None:
    file = folder / CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), "r": 8}))
    with pytest.raises(ModelRefused, match=r"\(4, 80\), and the config says rank 8"):
        load_lora(base.decoder, "own", folder)


def test_experts_are_refused(tmp_path: Path) -> None:
    model = random_model(tiny_config("qwen2_moe"))
    folder = write_lora(tmp_path, model, modules=("gate_proj",))
    with pytest.raises(LoraRefused, match=r"shared_expert.gate_proj.* is not served"):
        tensor_names(folder)


def test_the_fingerprint_is_of_weights_and_scale(base: Tiny, folder: Path, tmp_path: Path) -> None:
    found = {fingerprint(base, name, folder) for name in ("one", "two")}
    file = folder / CONFIG
    written = json.loads(file.read_text())
    file.write_text(json.dumps({**written, "lora_dropout": 0.3, "inference_mode": True}))
    found.add(fingerprint(base, "own", folder))
    assert len(found) == 1
    file.write_text(json.dumps({**written, "lora_alpha": 13}))
    found.add(fingerprint(base, "own", folder))
    file.write_text(json.dumps(written))
    change_weights(folder, lambda t: t[sorted(t)[0]].view(-1)[0].add_(1e-6))
    found.add(fingerprint(base, "own", folder))
    assert len(found) == 3


def fingerprint(base: Tiny, name: str, folder: Path) -> str:
    load_lora(base.decoder, name, folder)
    return base.decoder.loras[name].info.fingerprint
