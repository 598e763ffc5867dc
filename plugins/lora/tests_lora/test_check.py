"""The start-up check of a LoRA adapter passes one that is right, and finds what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.lora_projection import Lora, LoraUpdate
from kvstitch_lora import load
from tests.service.worker.lora_folders import with_loras, write_lora
from tests.service.worker.tiny import random_model, tiny_config

Change = Callable[[LoraUpdate], LoraUpdate]


def checked(decoder: DecoderModel, folder: Path) -> tuple[float, float]:
    theirs = load.lora_logits(decoder.model, "own", folder)
    return load.check_lora(decoder, "own", theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_one_passes(dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model(tiny_config("qwen2"), dtype=dtype)
    folder = write_lora(tmp_path, model)
    off, moved = checked(with_loras(model, own=folder).decoder, folder)
    assert off < 0.05 < 0.1 < moved


def test_one_that_changes_nothing_passes(tmp_path: Path) -> None:
    """As PEFT saves it before training: B is zero."""
    model = random_model(tiny_config("llama"))
    folder = write_lora(tmp_path, model, size=0.0)
    assert checked(with_loras(model, own=folder).decoder, folder)[1] == 0


@pytest.mark.parametrize("size", [1.0, 0.01])
@pytest.mark.parametrize(
    "change",
    [
        lambda own: LoraUpdate(own.a, own.b / 3),
        lambda own: LoraUpdate(own.a, -own.b),
        lambda own: LoraUpdate(own.b.t(), own.a.t()),
        lambda own: LoraUpdate(own.a.flip(0), own.b),
    ],
    ids=["scale missing", "sign", "A and B swapped", "ranks in another order"],
)
def test_a_wrong_one_is_refused(change: Change, size: float, tmp_path: Path) -> None:
    """Also where the adapter moves the logits by a hundredth only. o_proj is square here."""
    model = random_model(tiny_config("qwen2"))
    folder = write_lora(tmp_path, model, modules=("o_proj",), size=size)
    decoder = with_loras(model, own=folder).decoder
    checked(decoder, folder)
    decoder.loras["own"] = changed(decoder.loras["own"], change)
    with pytest.raises(ModelRefused, match="LoRA adapter own failed"):
        checked(decoder, folder)


def test_an_update_of_another_module_is_refused(tmp_path: Path) -> None:
    model = random_model(tiny_config("llama"))
    folder = write_lora(tmp_path, model, modules=("k_proj",))
    decoder = with_loras(model, own=folder).decoder
    values = decoder.kv_heads * decoder.head_dim  # behind the keys in the fused projection
    decoder.loras["own"] = changed(
        decoder.loras["own"], lambda own: replace(own, b=own.b.roll(values, 0))
    )
    with pytest.raises(ModelRefused, match="own failed"):
        checked(decoder, folder)


def changed(lora: Lora, change: Change) -> Lora:
    layers = [{name: change(own) for name, own in layer.items()} for layer in lora.layers]
    return replace(lora, layers=layers)
