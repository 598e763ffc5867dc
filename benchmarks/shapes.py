"""Random-weight models in the shape of real ones: right sizes and times, meaningless answers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from service.worker.adapters.base import DecoderAdapter, adapter_for


def qwen2_5_0_5b(
    *, dtype: torch.dtype = torch.bfloat16, seed: int = 0, layers: int = 24
) -> DecoderAdapter:
    """Qwen2.5-0.5B's shape: 24 layers, hidden 896, 14 heads, 2 KV heads, vocabulary 151936."""
    return adapter_for(stock_qwen2_5_0_5b(dtype=dtype, seed=seed, layers=layers))


def stock_qwen2_5_0_5b(
    *, dtype: torch.dtype = torch.bfloat16, seed: int = 0, layers: int = 24
) -> Any:
    """The same as transformers makes it, nothing of ours: what to hold a figure against."""
    config = Qwen2Config(
        hidden_size=896,
        num_hidden_layers=layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4864,
        vocab_size=151936,
        max_position_embeddings=32768,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    return _random_model(Qwen2ForCausalLM, config, dtype, seed)


def _random_model(cls: Any, config: Any, dtype: torch.dtype, seed: int) -> Any:
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = cls(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)
