"""Folders of every family load as a checkpoint is loaded, and pass the start-up check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.model.folder_checks import kv_numbers_per_token, read_config
from kvstitch.service.worker.model.load import load
from tests.service.worker.tiny import FAMILIES, random_model, rope_of, tiny_config

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model(tmp_path: Path, family: str) -> None:
    random_model(tiny_config(family, rope_of(family))).save_pretrained(tmp_path)
    decoder = load(str(tmp_path), device="cpu")
    assert decoder.family == family
    assert 4 * kv_numbers_per_token(read_config(tmp_path)) == decoder.kv_bytes_per_token
    linear = (m for m in decoder.blocks[0].self_attn.modules() if isinstance(m, nn.Linear))
    assert sum(decoder.attention_weights) == sum(m.weight.numel() for m in linear)
    theirs, stitched = selfcheck.check(decoder)
    assert theirs < 1e-4 and stitched < 1e-4


def test_keys_with_large_biases_in_bfloat16(tmp_path: Path) -> None:
    """As Qwen2.5-1.5B has them. transformers' eager attention rounds such scores coarsely."""
    config = tiny_config("qwen2", rope_of("qwen2"), num_hidden_layers=1)
    model = random_model(config, dtype=torch.bfloat16)
    random = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        bias = layer.self_attn.k_proj.bias
        bias.data = 60 * torch.randn(bias.shape, generator=random).to(bias.dtype)
    model.save_pretrained(tmp_path)
    selfcheck.check(load(str(tmp_path), device="cpu", dtype="bfloat16"))


def test_mxfp4_weights_are_dequantised(tmp_path: Path) -> None:
    """As gpt-oss comes: two numbers of four bits per byte, the lower bits first, and a power of two
    for every 32 of them."""
    sizes = {"hidden_size": 64, "intermediate_size": 32}
    config = tiny_config("gpt_oss", rope_of("gpt_oss"), **sizes)
    random_model(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    tensors, random = load_file(tmp_path / "model.safetensors"), torch.Generator().manual_seed(3)
    expected: dict[str, Tensor] = {}
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, width, out = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, out, width // 32, 16), generator=random)
        scales = torch.randint(121, 125, (experts, out, width // 32), generator=random)
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks.byte(), scales.byte()
        numbers = torch.stack([blocks % 16, blocks // 16], -1).flatten(-2)
        values = torch.tensor(E2M1)[numbers] * 2.0 ** (scales[..., None] - 127)
        expected[name] = values.flatten(-2).transpose(1, 2)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    facts = json.loads((tmp_path / "config.json").read_text())
    facts["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    decoder = load(str(tmp_path), device="cpu", dtype="bfloat16")
    held = decoder.model.state_dict()
    for name, values in expected.items():
        assert held[name].float().equal(values)
    selfcheck.check(decoder)
