"""Tiny random GGUF files, written by gguf's own writer as llama.cpp's converter would.

The weights that a file holds after rounding are returned in transformers' layout, so that a model
can be made of them without reading the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

WIDTH = 256  # a row of the K and IQ types has at least one block of 256
LETTERS = sorted(ByteLevel.alphabet())
TOKENS = ["<s>", "</s>", "<|user|>", *LETTERS, "th", "in"]
# A SentencePiece vocabulary: unknown, BOS, EOS, bytes, pieces from the most likely on.
PIECES = [
    "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁in", "in", "▁the", "the", "th", "▁", *"abcdefghijklmnopqrstuvwxyz.",
]  # fmt: skip
CHAT_TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
CONFIGS: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
PLACES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
CAN_BE_WRITTEN = (
    Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0,
    Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4,
)  # fmt: skip
ONLY_READ = (
    Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S,
    Kind.IQ3_XXS, Kind.IQ3_S, Kind.IQ1_S, Kind.IQ1_M, Kind.IQ4_NL, Kind.IQ4_XS, Kind.NVFP4,
)  # fmt: skip


def tiny_config(family: str, *, tied: bool = True, rope: dict[str, Any] | None = None) -> Any:
    return CONFIGS[family](
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        rope_parameters=rope or {"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )


def write_gguf(
    path: Path,
    config: Any,
    kind: Kind = Kind.F32,
    *,
    architecture: str = "",
    name: str = "Tiny",
    keys: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Write a random model.

    Args:
        path: The file.
        config: The model's, of transformers.
        kind: How matrices are stored; vectors are F32.
        architecture: In the header, if not the family's.
        name: Of the model, in the header.
        keys: Further metadata, without the architecture's name.
        tensors: Further tensors.
        seed: Of the weights.

    Returns:
        The weights as they are stored, by transformers' names and in its layout.
    """
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config).state_dict()
    rng, held = np.random.default_rng(seed), {}
    out = gguf.GGUFWriter(str(path), architecture or config.model_type)
    out.add_name(name)
    _write_metadata(out, config, keys or {})
    for weight, empty in shapes.items():
        if weight == "lm_head.weight" and config.tie_word_embeddings:
            continue
        shape, place = tuple(empty.shape), _place(weight)
        if len(shape) == 1:
            mean, width = (1.0, 0.1) if "norm" in weight else (0.0, 0.1)
            values = rng.normal(mean, width, shape).astype(np.float32)
            out.add_tensor(place, values)
            held[weight] = torch.tensor(values)
            continue
        stored = _random_matrix(shape, kind, rng)
        out.add_tensor(place, stored, raw_dtype=kind)
        held[weight] = torch.tensor(_as_transformers(place, gguf.dequantize(stored, kind), config))
    for place, values in (tensors or {}).items():
        out.add_tensor(place, values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return held


def weights_in(stored: dict[str, np.ndarray[Any, Any]], config: Any) -> dict[str, torch.Tensor]:
    """Dequantised weights by llama.cpp's names → by transformers' names and in its layout."""
    with torch.device("meta"):
        names = AutoModelForCausalLM.from_config(config).state_dict()
    return {
        name: torch.tensor(_as_transformers(_place(name), stored[_place(name)], config))
        for name in names
        if _place(name) in stored
    }


def _write_metadata(out: gguf.GGUFWriter, config: Any, keys: dict[str, Any]) -> None:
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.model_type == "llama":
        out.add_rope_dimension_count(config.head_dim)
        out.add_vocab_size(config.vocab_size)
    if config.model_type == "qwen3":
        out.add_key_length(config.head_dim)
        out.add_value_length(config.head_dim)
    for key, value in keys.items():
        add = {str: out.add_string, int: out.add_uint32, float: out.add_float32}[type(value)]
        add(f"{out.arch}.{key}", value)
    if config.vocab_size == len(PIECES):
        out.add_tokenizer_model("llama")  # SentencePiece
        out.add_token_list(PIECES)
        out.add_token_scores([-float(place) for place in range(len(PIECES))])
        # unknown, control, byte, normal
        out.add_token_types([2, 3, 3, *(6 if piece[0] == "<" else 1 for piece in PIECES[3:])])
    else:
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("qwen2" if config.model_type.startswith("qwen") else "default")
        out.add_token_list(TOKENS)
        out.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))  # control, normal
        out.add_token_merges(["t h", "i n"])
    out.add_bos_token_id(config.bos_token_id)
    out.add_eos_token_id(config.eos_token_id)
    out.add_chat_template(CHAT_TEMPLATE)


def _place(name: str) -> str:
    """llama.cpp's name of a weight."""
    ends = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
            "model.norm.weight": "output_norm.weight"}  # fmt: skip
    if name in ends:
        return ends[name]
    _, _, layer, middle = name.split(".", 3)
    module, _, kind = middle.rpartition(".")
    return f"blk.{layer}.{PLACES[module]}.{kind}"


def _random_matrix(
    shape: tuple[int, ...], kind: Kind, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """A matrix as it is stored: rounded from normal values, or of random blocks."""
    if kind in CAN_BE_WRITTEN:
        return gguf.quantize(rng.normal(0, 0.08, shape).astype(np.float32), kind)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros((shape[0] * shape[1] // elements, size), np.uint8)
    missing = np.arange(len(blocks))
    while len(missing):  # random scales are mostly far too large, or no number
        blocks[missing] = rng.integers(0, 256, (len(missing), size), np.uint8)
        with np.errstate(all="ignore"):
            largest = np.abs(gguf.dequantize(blocks[missing], kind)).max(axis=1)
        missing = missing[~((largest > 0.02) & (largest < 0.5))]
    return blocks.reshape(shape[0], -1)


def _as_transformers(place: str, values: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    """Undo the order in which llama.cpp stores the query and key rows of its `llama`.

    Its converter writes row (half, i) of a head, of transformers' two halves, at (i, half).
    """
    if config.model_type != "llama" or (".attn_q." not in place and ".attn_k." not in place):
        return values
    pairs = values.reshape(-1, config.head_dim // 2, 2, values.shape[1])
    return np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(values.shape)
