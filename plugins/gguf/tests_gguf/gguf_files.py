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
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM

from tests_gguf.gguf_families import FAMILIES
from tests_gguf.gguf_hybrids import HYBRIDS, hybrid_parts

WIDTH = 256  # a row of the K and IQ types has at least one block of 256
HEAD_DIM = 64
LETTERS = sorted(ByteLevel.alphabet())
TOKENS = ["<s>", "</s>", "<|user|>", *LETTERS, "th", "in", "<|im_end|>"]
# A SentencePiece vocabulary: unknown, BOS, EOS, bytes, pieces from the most likely on.
PIECES = [
    "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁in", "in", "▁the", "the", "th", "▁", *"abcdefghijklmnopqrstuvwxyz.",
]  # fmt: skip
CHAT_TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
ENDS = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm", "model.embeddings": "token_embd",
    "model.norm_f": "output_norm", "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
PLACES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.experts.down_proj": "ffn_down_exps",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# Families in which this norm stands behind attention, or is called as if it did.
NORM_BEHIND_ATTENTION = (
    *("gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "olmo2", "olmo3"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
)
TURNS_PAIRS = ("llama", "mixtral", "granite", "granitemoehybrid", "smollm3")
# Norms are written with what the family adds to them.
ADDS_ONE = ("gemma2", "gemma3", "qwen3_5", "qwen3_next")
CAN_BE_WRITTEN = (
    Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0,
    Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4,
)  # fmt: skip
ONLY_READ = (
    Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S,
    Kind.IQ3_XXS, Kind.IQ3_S, Kind.IQ1_S, Kind.IQ1_M, Kind.IQ4_NL, Kind.IQ4_XS, Kind.NVFP4,
)  # fmt: skip


def tiny_config(family: str, *, tied: bool = True, **changes: Any) -> Any:
    facts = {
        "vocab_size": len(TOKENS),
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    return FAMILIES[family].config(**{**facts, **FAMILIES[family].own, **changes})


def write_gguf(
    path: Path,
    config: Any,
    kind: Kind = Kind.F32,
    *,
    family: str = "",
    architecture: str = "",
    name: str = "Tiny",
    template: str = CHAT_TEMPLATE,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[Any]] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Write a random model.

    Args:
        path: The file.
        config: The model's, of transformers.
        kind: How matrices are stored; vectors are F32.
        family: Its name in `FAMILIES`, if that is not the config's `model_type`.
        architecture: In the header, if not the family's.
        name: Of the model, in the header.
        template: Of chats.
        keys: Further metadata, without the architecture's name; None as a value: not written.
        tensors: Further tensors.
        seed: Of the weights.

    Returns:
        The weights as they are stored, by transformers' names and in its layout.
    """
    about = FAMILIES[family or config.model_type]
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config).state_dict()
    rng, held = np.random.default_rng(seed), {}
    out = gguf.GGUFWriter(str(path), architecture or about.architecture)
    out.add_name(name)
    _write_metadata(out, config, {**_sizes(config, about.drops), **about.keys, **(keys or {})})
    out.add_chat_template(template)
    for weight, empty in shapes.items():
        if weight == "lm_head.weight" and config.tie_word_embeddings:
            continue
        shape = tuple(empty.shape)
        if len(shape) == 1 or "norm" in weight or weight.endswith("bias"):
            adds = config.model_type == "gemma" or config.model_type.startswith(ADDS_ONE)
            added = float("norm" in weight and adds and "linear_attn" not in weight)
            mean = float("norm" in weight or "scal" in weight) - added
            values = rng.normal(mean, 0.1, shape).astype(np.float32)
            held[weight] = torch.tensor(values)
            for place, part in _parts(weight, values + np.float32(added), config).items():
                out.add_tensor(place, part)
            continue
        turned = config.model_type == "gpt_oss" and len(shape) == 3  # `[experts, in, out]`
        rows = (shape[0], shape[2], shape[1]) if turned else shape
        stored = _random_matrix(rows, kind, rng)
        values = gguf.dequantize(stored, kind)
        held[weight] = torch.tensor(values.swapaxes(1, 2) if turned else values)
        for place, part in _parts(weight, stored, config).items():
            part = part[0] if place.endswith("gate_inp_shexp.weight") else part  # (1, n) there
            out.add_tensor(place, np.ascontiguousarray(part), raw_dtype=kind)
    if config.model_type == "gemma4_text":  # the first quarter of a head is rotated
        factors = np.repeat(
            np.array([1, 1e30], np.float32), [HEAD_DIM // 8, HEAD_DIM // 2 - HEAD_DIM // 8]
        )
        tensors = {"rope_freqs.weight": factors, **(tensors or {})}
    for place, values in (tensors or {}).items():
        out.add_tensor(place, values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return held


def weights_in(stored: dict[str, NDArray[Any]], config: Any) -> dict[str, torch.Tensor]:
    """Dequantised weights of a Llama by llama.cpp's names → by transformers', in its layout."""
    with torch.device("meta"):
        names = AutoModelForCausalLM.from_config(config).state_dict()
    found = {}
    for name in names:
        (place,) = _parts(name, np.zeros((HEAD_DIM, 1)), config)
        if place not in stored:
            continue
        values = stored[place]
        if ".attn_q." in place or ".attn_k." in place:
            pairs = values.reshape(-1, HEAD_DIM // 2, 2, values.shape[1])
            values = np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(values.shape)
        found[name] = torch.tensor(values)
    return found


def _sizes(config: Any, without: tuple[str, ...]) -> dict[str, Any]:
    ropes = config.rope_parameters
    written = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
    }
    if "rms_norm_eps" not in without:
        written["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    if "rope_theta" not in without:
        written["rope.freq_base"] = ropes.get("full_attention", ropes)["rope_theta"]
    return written


def _write_metadata(out: gguf.GGUFWriter, config: Any, keys: dict[str, Any]) -> None:
    adders: dict[type, Any] = {
        str: out.add_string, int: out.add_uint32, float: out.add_float32, bool: out.add_bool,
        list: out.add_array,
    }  # fmt: skip
    for key, value in keys.items():
        if value is not None and key != "tokenizer.ggml.tokens":
            named = key if key.startswith(("tokenizer.", "split.")) else f"{out.arch}.{key}"
            adders[type(value)](named, value)
    if config.vocab_size == len(PIECES):
        out.add_tokenizer_model("gemma4" if out.arch == "gemma4" else "llama")  # SentencePiece
        if out.arch == "gemma4":
            out.add_token_merges(["i n", "t h", "th e", "▁ in", "▁ the"])
        out.add_token_list(PIECES)
        out.add_token_scores([-float(place) for place in range(len(PIECES))])
        # unknown, control, byte, normal
        out.add_token_types([2, 3, 3, *(6 if piece[0] == "<" else 1 for piece in PIECES[3:])])
    else:
        out.add_tokenizer_model("gpt2")
        if "tokenizer.ggml.pre" not in keys:
            out.add_tokenizer_pre("qwen2" if config.model_type.startswith("qwen") else "default")
        out.add_token_list(keys.get("tokenizer.ggml.tokens", TOKENS))
        # control, normal
        out.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 4), 3])
        out.add_token_merges(["t h", "i n"])
    out.add_bos_token_id(config.bos_token_id)
    out.add_eos_token_id(config.eos_token_id)


def _parts(name: str, values: NDArray[Any], config: Any) -> dict[str, NDArray[Any]]:
    """llama.cpp's tensors of a weight. Rows are moved whole, so they may be quantised already."""
    module, _, kind = name.rpartition(".")
    if module in ENDS:
        return {f"{ENDS[module]}.{kind}": values}
    _, _, layer, within = name.split(".", 3)
    own = hybrid_parts(within, values, config) if config.model_type in HYBRIDS else None
    if own is not None:
        return {f"blk.{layer}.{place}": part for place, part in own.items()}
    if within.startswith("mlp.experts.gate_up_proj"):
        kind = "bias" if within.endswith("bias") else "weight"
        if config.model_type == "gpt_oss":
            gate, up = values[:, ::2], values[:, 1::2]
        else:
            gate, up = np.split(values, 2, axis=1)
        return {f"blk.{layer}.ffn_gate_exps.{kind}": gate, f"blk.{layer}.ffn_up_exps.{kind}": up}
    for end in (".weight", ".bias", "_bias"):
        if within.endswith(end):
            within, kind = within.removesuffix(end), end[1:]
            break
    else:
        kind = "weight"
    place = PLACES[within]
    if within == "post_attention_layernorm" and config.model_type in NORM_BEHIND_ATTENTION:
        place = "post_attention_norm"
    if place in ("attn_q", "attn_k") and config.model_type in TURNS_PAIRS:
        # row (half, i) of a head is written at (i, half)
        halves = values.reshape(-1, 2, HEAD_DIM // 2, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    return {f"blk.{layer}.{place}.{kind}": values}


def _random_matrix(shape: tuple[int, ...], kind: Kind, rng: np.random.Generator) -> NDArray[Any]:
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
