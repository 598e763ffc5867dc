"""Writes a Llama model's folder as a GGUF file with the same bfloat16 weights, for llama.cpp.

llama.cpp rotates neighbouring numbers of a head, where the folder's weights rotate halves, so rows
of the query and key projections change places.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(folder: Path, path: Path) -> None:
    """Writes the file.

    Args:
        folder: a Hugging Face model folder.
        path: the file.

    Raises:
        ValueError: the model is no Llama, or has biases, or its weights are in several files.
    """
    config = json.loads((folder / "config.json").read_text())
    weights = folder / "model.safetensors"
    if config["model_type"] != "llama" or not weights.is_file():
        raise ValueError("only a Llama model with its weights in one file can be written as GGUF")
    out = gguf.GGUFWriter(str(path), "llama")
    _write_sizes(out, config)
    _write_tokens(out, folder, config)
    for name, tensor in load_file(weights).items():
        _write_tensor(out, name, tensor, config)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _write_sizes(out: Any, config: dict[str, Any]) -> None:
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _write_tokens(out: Any, folder: Path, config: dict[str, Any]) -> None:
    """The vocabulary. Prompts arrive as ids, so it only turns answers into text."""
    raw = json.loads((folder / "tokenizer.json").read_text())
    special = {each["id"]: each["content"] for each in raw["added_tokens"]}
    texts = {place: text for text, place in raw["model"]["vocab"].items()} | special
    places = range(config["vocab_size"])
    kinds = [gguf.TokenType.CONTROL if p in special else gguf.TokenType.NORMAL for p in places]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list([texts.get(place, f"[unused {place}]") for place in places])
    out.add_token_types(kinds)
    merges = raw["model"]["merges"]
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])
    out.add_add_bos_token(False)


def _write_tensor(out: Any, name: str, tensor: torch.Tensor, config: dict[str, Any]) -> None:
    if name in OTHER_NAMES:
        new = OTHER_NAMES[name]
    else:
        layer, _, part = name.removeprefix("model.layers.").partition(".")
        if part.removesuffix(".weight") not in NAMES:
            raise ValueError(f"the GGUF file has no place for {name}")
        new = f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"
        if part.startswith("self_attn.q_proj"):
            tensor = interleaved(tensor, config["num_attention_heads"])
        elif part.startswith("self_attn.k_proj"):
            tensor = interleaved(tensor, config["num_key_value_heads"])
    if tensor.dim() == 1:
        out.add_tensor(new, tensor.float().numpy())
        return
    numbers = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
    out.add_tensor(new, numbers, raw_dtype=gguf.GGMLQuantizationType.BF16)


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head: 0, half, 1, half + 1, …

    Args:
        weight: `[heads * head_dim, hidden]`.
        heads: of the projection.
    """
    rows, hidden = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, hidden)
    return halves.transpose(1, 2).reshape(rows, hidden)
