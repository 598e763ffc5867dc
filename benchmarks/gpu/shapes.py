"""The model that is measured on a GPU: Llama-3-8B's shape with random weights, and a tiny one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

RESULTS = Path(__file__).parent.parent / "results" / "speed"
LLAMA_3_8B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
TINY = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 211,
}  # fmt: skip


def config_of(sizes: Mapping[str, int]) -> LlamaConfig:
    """Return the configuration of a shape."""
    return LlamaConfig(
        **sizes, max_position_embeddings=32768, rope_theta=500_000.0, eos_token_id=None,
        bos_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip


def random_model(sizes: Mapping[str, int], device: str) -> Any:
    """Return transformers' model of a shape in bfloat16, with random weights."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config_of(sizes))
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)
