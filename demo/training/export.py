"""Writes the model as a standard Hugging Face folder, with the service's prompt in it."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from demo.language.vocabulary import (
    BOS,
    BOS_ID,
    DOCUMENT,
    EOS_ID,
    PAD_ID,
    QUESTION,
    SYSTEM,
    build_tokenizer,
    save_tokenizer,
)
from demo.training.decoder import Decoder
from demo.training.shards import write_shards

SERVED_CHUNK_TOKENS = 128
"""Chunk size that the service uses with this model."""


def export(model: Decoder, master: dict[str, Tensor], folder: Path) -> None:
    """Writes weights in bf16, configuration, tokenizer, generation defaults and `kvstitch.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{n}": t.detach().bfloat16().contiguous() for n, t in master.items()}
    write_shards(tensors, folder)
    config = model.config
    _write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "dtype": "bfloat16",
        },
    )
    _write(
        folder / "generation_config.json",
        {
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "do_sample": False,
        },
    )
    _write(
        folder / "kvstitch.json",
        {
            "chunk_tokens": SERVED_CHUNK_TOKENS,
            "top_k": 3,
            "max_tokens": 16,
            "prefix_mode": "system",
            "stop": ["\n"],
            "bos": BOS,
            "prompt": {"system": SYSTEM, "document": DOCUMENT, "question": QUESTION},
        },
    )
    save_tokenizer(build_tokenizer(), folder, config.max_position_embeddings)


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
