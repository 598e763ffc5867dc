"""How llama.cpp writes the families that are served: a table of what stands in its `conversion/`
and `src/models/` and nowhere in a file, readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvstitch_gguf import gguf_hybrids as hybrids
from kvstitch_gguf.gguf_file import GgufHeader


@dataclass(frozen=True)
class GgufFamily:
    """A family as llama.cpp writes it."""

    model_type: str
    models: str
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    marked_by: str = ""
    switches: Mapping[str, str] = field(default_factory=dict)
    turns_pairs: bool = False
    norm_offset: float = 0.0
    window_period: int = 0
    ropes_by_layer: bool = False
    local_theta: float | None = None
    scaled_by_width: int = 0
    rotates_part: bool = False
    yarn: Mapping[str, Any] = field(default_factory=dict)
    alternates: bool = False
    hybrid: bool = False
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)


# Keys without the architecture's name → fields of config.json, in every family.
KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# Keys that are looked at by name, and those that change nothing.
OTHER_KEYS = (
    *("attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base"),
    *("vocab_size", "tensor_data_layout", "rope.scaling.finetuned"),
)
WINDOW, WINDOW_PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
LOCAL_BASE = "rope.freq_base_swa"
# Factors of RoPE; they become a part of config.json, not of the weights.
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"

_WINDOW = {WINDOW: "sliding_window"}
_EXPERTS_USED = {"expert_used_count": "num_experts_per_tok"}
_LOCAL_EXPERTS = {"expert_count": "num_local_experts", **_EXPERTS_USED}
_QWEN_EXPERTS = {
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    **_EXPERTS_USED,
}
_MULTIPLIERS = {
    "attention.scale": "attention_multiplier", "logit_scale": "logits_scaling",
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
}  # fmt: skip
_COHERE = {"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"}
_SOFT_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_ATTENTION_BIAS = {"attention_bias": "blk.0.attn_q.bias"}
_BIASES = {**_ATTENTION_BIAS, "mlp_bias": "blk.0.ffn_up.bias"}

# By the file's `general.architecture`; the first family whose mark a file has is the file's.
FAMILIES: dict[str, tuple[GgufFamily, ...]] = {
    "llama": (
        GgufFamily("mixtral", "Mixtral", _LOCAL_EXPERTS, marked_by="expert_count",
                   turns_pairs=True),
        # llama.cpp writes Mistral's models as llama: without a window they are the same.
        GgufFamily("llama", "Llama, Mistral", switches=_BIASES, turns_pairs=True),
    ),
    "command-r": (
        GgufFamily("cohere", "Command R", _COHERE,
                   switches={"use_qk_norm": "blk.0.attn_q_norm.weight"}),
    ),
    "cohere2": (
        GgufFamily("cohere2", "Command R7B, Command A", {**_COHERE, **_WINDOW}, window_period=4),
    ),
    "gemma": (GgufFamily("gemma", "Gemma", norm_offset=1.0),),
    "gemma2": (
        GgufFamily("gemma2", "Gemma 2", {**_WINDOW, **_SOFT_CAPS}, norm_offset=1.0,
                   window_period=2, scaled_by_width=46),
    ),
    "gemma3": (
        GgufFamily("gemma3_text", "Gemma 3", {**_WINDOW, **_SOFT_CAPS}, norm_offset=1.0,
                   window_period=6, ropes_by_layer=True, local_theta=10_000.0,
                   scaled_by_width=62),
    ),
    "gpt-oss": (
        GgufFamily("gpt_oss", "gpt-oss",
                   {**_LOCAL_EXPERTS, **_WINDOW, "expert_feed_forward_length": "intermediate_size"},
                   window_period=2, yarn={"truncate": False}, alternates=True),
    ),
    "granite": (
        GgufFamily("granite", "Granite 3", _MULTIPLIERS, switches=_BIASES, turns_pairs=True),
    ),
    "granitehybrid": (
        GgufFamily("granitemoehybrid", "Granite 4 with experts",
                   {**_MULTIPLIERS, **_LOCAL_EXPERTS, **hybrids.GRANITE}, marked_by="expert_count",
                   turns_pairs=True, hybrid=True, places=hybrids.GRANITE_MOE_PLACES),
        GgufFamily("granitemoehybrid", "Granite 4", {**_MULTIPLIERS, **hybrids.GRANITE},
                   fixed={"num_local_experts": 0, "num_experts_per_tok": 0},
                   turns_pairs=True, hybrid=True, places=hybrids.GRANITE_PLACES),
    ),
    "lfm2": (
        GgufFamily("lfm2", "LFM2", hybrids.LFM2, fixed={"block_auto_adjust_ff_dim": False},
                   hybrid=True),
    ),
    "lfm2moe": (
        GgufFamily("lfm2_moe", "LFM2 with experts", {**hybrids.LFM2_MOE, **_QWEN_EXPERTS},
                   needs={"expert_gating_func": 2}, hybrid=True, places=hybrids.LFM2_MOE_PLACES),
    ),
    "nemotron_h": (
        GgufFamily("nemotron_h", "Nemotron-H", hybrids.NEMOTRON, hybrid=True,
                   places=hybrids.NEMOTRON_PLACES),
    ),
    "nemotron_h_moe": (
        GgufFamily("nemotron_h", "Nemotron 3", hybrids.NEMOTRON_MOE, hybrid=True,
                   places=hybrids.NEMOTRON_PLACES),
    ),
    "olmo2": (
        GgufFamily("olmo3", "OLMo 3", _WINDOW, marked_by=WINDOW, window_period=4,
                   ropes_by_layer=True),
        GgufFamily("olmo2", "OLMo 2"),
    ),
    "phi3": (GgufFamily("phi3", "Phi-3, Phi-4", _WINDOW, rotates_part=True),),
    "qwen2": (GgufFamily("qwen2", "Qwen2"),),
    "qwen2moe": (
        GgufFamily("qwen2_moe", "Qwen2 with experts",
                   {**_QWEN_EXPERTS,
                    "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
                   fixed={"norm_topk_prob": False}),
    ),
    "qwen3": (GgufFamily("qwen3", "Qwen3", switches=_ATTENTION_BIAS),),
    "qwen3moe": (
        GgufFamily("qwen3_moe", "Qwen3 with experts", _QWEN_EXPERTS, switches=_ATTENTION_BIAS,
                   fixed={"norm_topk_prob": True}),
    ),
    "qwen35": (
        GgufFamily("qwen3_5_text", "Qwen3.5", hybrids.DELTA, norm_offset=1.0, rotates_part=True,
                   hybrid=True, places=hybrids.DELTA_PLACES),
    ),
    "qwen35moe": (
        GgufFamily("qwen3_5_moe_text", "Qwen3.5 with experts",
                   {**hybrids.DELTA, **_QWEN_EXPERTS, **hybrids.DELTA_EXPERTS}, norm_offset=1.0,
                   rotates_part=True, hybrid=True, places=hybrids.DELTA_PLACES),
    ),
    "qwen3next": (
        GgufFamily("qwen3_next", "Qwen3-Next",
                   {**hybrids.DELTA, **_QWEN_EXPERTS, **hybrids.DELTA_EXPERTS}, norm_offset=1.0,
                   rotates_part=True, hybrid=True, places=hybrids.DELTA_PLACES),
    ),
    "smollm3": (GgufFamily("smollm3", "SmolLM3", switches=_BIASES, turns_pairs=True),),
}  # fmt: skip
SERVED = ", ".join(
    f"{name} ({', '.join(family.models for family in reversed(families))})"
    for name, families in FAMILIES.items()
)

# How text was split before its merges were learned, `tokenizer.ggml.pre`: as transformers knows
# it, in single digits and then as GPT-2, or as GPT-2.
KNOWN_SPLITS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    *("jina-v5-nano", "dbrx", "smaug-bpe", "tekken", "qwen2", "deepseek-r1-qwen", "kormo"),
    *("f2llmv2", "megrez", "qwen35", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
)
SINGLE_DIGITS = ("command-r", "refact", "smollm", "starcoder")
LIKE_GPT2 = ("default", "gpt-2", "gpt2", "olmo")


def family_of(header: GgufHeader) -> GgufFamily | None:
    """Return the family of a file, None if it is not read."""
    families = FAMILIES.get(header.architecture, ())
    return next((f for f in families if not f.marked_by or header.get(f.marked_by)), None)


def architectures_of(model_type: str) -> list[str]:
    """Return the architectures of files that may hold a family."""
    if model_type == "mistral":
        model_type = "llama"
    return [
        name for name, all_ in FAMILIES.items() if any(f.model_type == model_type for f in all_)
    ]
