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
    latent: bool = False
    local_heads: bool = False
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
    "deepseek2": (
        GgufFamily("glm4_moe_lite", "GLM-4.7-Flash", hybrids.LATENT, latent=True,
                   marked_by="tokenizer.ggml.pre=glm4", needs={"expert_gating_func": 2},
                   places=hybrids.LATENT_PLACES),
        GgufFamily("deepseek_v3", "DeepSeek-V3", hybrids.LATENT, latent=True,
                   marked_by="expert_gating_func=2", places=hybrids.LATENT_PLACES),
        GgufFamily("deepseek_v2", "DeepSeek-V2", hybrids.LATENT, latent=True,
                   needs={"expert_gating_func": 1, "expert_weights_norm": False},
                   places=hybrids.LATENT_PLACES),
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
    "gemma4": (
        GgufFamily("gemma4_text", "Gemma 4", {**_WINDOW, **_SOFT_CAPS, **hybrids.GEMMA4},
                   window_period=6, ropes_by_layer=True, local_heads=True,
                   places=hybrids.GEMMA4_PLACES),
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
# Capital and small letters, but for Armenian and Georgian small ones, those of mathematics, and
# what Unicode has gained since.
_CASED = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8A}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{10D50}-\x{10D85}\x{16E40}-\x{16EFF}"
    r"\x{1D400}-\x{1DF2A}]]"
)
_GLM = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_EAST_ASIAN = "[\u0800-\u9fa5\uac00-\ud7ff]+"
# Regular expressions that split text one after another; digits stand alone where none has them.
OWN_SPLITS = {
    "deepseek-llm": (
        r"[\r\n]", rf"\s?{_CASED}+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", _EAST_ASIAN,
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN),
    "deepseek-v3": (
        r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "glm4": (_GLM,),
    "chatglm-bpe": (_GLM,),
}  # fmt: skip
LIKE_GPT2 = ("default", "gpt-2", "gpt2", "olmo")


def family_of(header: GgufHeader) -> GgufFamily | None:
    """Return the family of a file, None if it is not read."""
    families = FAMILIES.get(header.architecture, ())
    return next((f for f in families if not f.marked_by or _marked(header, f.marked_by)), None)


def _marked(header: GgufHeader, mark: str) -> bool:
    """Return whether a header has a key, or says what stands behind "=" of it."""
    key, _, value = mark.partition("=")
    said = header.metadata.get(key, header.get(key))
    return str(said) == value if value else bool(said)


def architectures_of(model_type: str) -> list[str]:
    """Return the architectures of files that may hold a family."""
    if model_type == "mistral":
        model_type = "llama"
    return [
        name for name, all_ in FAMILIES.items() if any(f.model_type == model_type for f in all_)
    ]
