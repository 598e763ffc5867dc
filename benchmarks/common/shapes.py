"""Models with random weights in the shape of real ones: same sizes and times, random answers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from kvstitch.service.worker.api import DecoderModel, decoder_for

QWEN2 = {
    "qwen2.5-0.5b": {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 211,
    },
}


def sizes(name: str) -> dict[str, int]:
    """The numbers of a shape, with the names of transformers' config."""
    return dict(QWEN2[name])


def random_qwen2(
    name: str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    layers: int | None = None,
) -> Any:
    """A Qwen2 model of transformers, without a decoder."""
    numbers = sizes(name)
    if layers is not None:
        numbers["num_hidden_layers"] = min(layers, numbers["num_hidden_layers"])
    config = Qwen2Config(
        **numbers,
        max_position_embeddings=32768,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    return random_model(Qwen2ForCausalLM, config, dtype, seed)


def qwen2_5_0_5b(
    *, dtype: torch.dtype = torch.bfloat16, seed: int = 0, layers: int = 24
) -> DecoderModel:
    """Shape of Qwen2.5-0.5B: 24 layers, hidden 896, 14 heads, 2 KV heads, vocabulary 151,936."""
    return decoder_for(random_qwen2("qwen2.5-0.5b", dtype=dtype, seed=seed, layers=layers))


def random_model(cls: Any, config: Any, dtype: torch.dtype, seed: int) -> Any:
    """A model of this class of transformers with random weights."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = cls(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)
