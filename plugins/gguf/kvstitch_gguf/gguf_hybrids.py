"""How llama.cpp writes hybrids, latent attention and Gemma 4: which layers attend, sizes of their
mixers and heads, and what the weights are called that transformers holds differently. Readable
without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstitch_gguf.gguf_file import GgufHeader

# What llama.cpp writes for models without RoPE, which say no length; theirs are trained for less.
_ANY_LENGTH, _TRAINED = 2**20, 2**17

LFM2 = {"attention.layer_norm_rms_epsilon": "norm_eps", "shortconv.l_cache": "conv_L_cache"}
LFM2_MOE = {**LFM2, "leading_dense_block_count": "num_dense_layers"}
GRANITE = {
    "expert_shared_feed_forward_length": "shared_intermediate_size",
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
NEMOTRON = {
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
}
_ROUTED = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
NEMOTRON_MOE = {
    **NEMOTRON,
    **_ROUTED,
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "moe_latent_size": "moe_latent_size",
}
LATENT = {
    **_ROUTED,
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
# The groups of experts that older files do not name: DeepSeek-V2's and V3's, by their experts.
_GROUPS = {160: (8, 3), 256: (8, 4)}
GEMMA4 = {
    "attention.key_length_swa": "head_dim",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "expert_count": "num_experts",
    "expert_used_count": "top_k_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
}
DELTA = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
DELTA_EXPERTS = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
# Keys that are looked at here by name, and sections of RoPE, which are one for text.
OTHERS = (
    *("ssm.inner_size", "attention.recurrent_layers", "full_attention_interval"),
    *("nextn_predict_layers", "rope.dimension_sections", "expert_gating_func"),
)
LATENT_OTHERS = (
    *("attention.key_length_mla", "attention.value_length_mla", "leading_dense_block_count"),
    *("nextn_predict_layers", "expert_gating_func"),
)
LOCAL_OTHERS = ("attention.value_length_swa", "rope.dimension_count_swa")

_EXPERTS = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
_MIXER = {"dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d"}
_ALL = {"conv1d.weight": "ssm_conv1d.weight", "conv1d.bias": "ssm_conv1d.bias",
        "in_proj.weight": "ssm_in.weight", "norm.weight": "ssm_norm.weight",
        "out_proj.weight": "ssm_out.weight"}  # fmt: skip


def _under(module: str, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {f"{module}.{ours}": (theirs,) for ours, theirs in names.items()}


# Weights within a layer, by transformers' names → tensors that are joined row by row.
LFM2_MOE_PLACES: dict[str, tuple[str, ...]] = {
    "feed_forward.expert_bias": ("exp_probs_b.bias",),
    "feed_forward.experts.gate_up_proj": _EXPERTS,
    "feed_forward.experts.down_proj": ("ffn_down_exps.weight",),
}
GRANITE_PLACES: dict[str, tuple[str, ...]] = {
    **_under("mamba", _MIXER),
    "shared_mlp.input_linear.weight": ("ffn_gate.weight", "ffn_up.weight"),
    "shared_mlp.output_linear.weight": ("ffn_down.weight",),
}
GRANITE_MOE_PLACES: dict[str, tuple[str, ...]] = {
    **_under("mamba", _MIXER),
    "shared_mlp.input_linear.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
    "shared_mlp.output_linear.weight": ("ffn_down_shexp.weight",),
    "block_sparse_moe.router.weight": ("ffn_gate_inp.weight",),
    "block_sparse_moe.experts.gate_up_proj": _EXPERTS,
    "block_sparse_moe.experts.down_proj": ("ffn_down_exps.weight",),
}
NEMOTRON_PLACES: dict[str, tuple[str, ...]] = {
    **_under("mixer", {**_MIXER, **_ALL}),
    **_under("mixer", {
        "up_proj.weight": "ffn_up.weight", "down_proj.weight": "ffn_down.weight",
        "q_proj.weight": "attn_q.weight", "k_proj.weight": "attn_k.weight",
        "v_proj.weight": "attn_v.weight", "o_proj.weight": "attn_output.weight",
        "gate.weight": "ffn_gate_inp.weight", "gate.e_score_correction_bias": "exp_probs_b.bias",
        "experts.up_proj": "ffn_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight",
        "shared_experts.up_proj.weight": "ffn_up_shexp.weight",
        "shared_experts.down_proj.weight": "ffn_down_shexp.weight",
        "fc1_latent_proj.weight": "ffn_latent_down.weight",
        "fc2_latent_proj.weight": "ffn_latent_up.weight",
    }),
}  # fmt: skip
DELTA_PLACES: dict[str, tuple[str, ...]] = {
    **_under("linear_attn", {"dt_bias": "ssm_dt.bias", "A_log": "ssm_a"}),
    "linear_attn.in_proj_qkvz.weight": ("attn_qkv.weight", "attn_gate.weight"),
}
LATENT_PLACES: dict[str, tuple[str, ...]] = {
    "self_attn.kv_b_proj.weight": ("attn_k_b.weight", "attn_v_b.weight"),
    "mlp.gate.e_score_correction_bias": ("exp_probs_b.bias",),
}
GEMMA4_PLACES: dict[str, tuple[str, ...]] = {
    "router.scale": ("ffn_gate_inp.scale",),
    "router.per_expert_scale": ("ffn_down_exps.scale",),
    "experts.gate_up_proj": _EXPERTS,
}


def facts_of(header: GgufHeader, model_type: str) -> dict[str, Any]:
    """Return the fields of a hybrid's config that no key holds by itself."""
    get = header.get
    layers = get("block_count") - get("nextn_predict_layers", 0)
    width = (get("ssm.inner_size") or 0) // (get("ssm.time_step_rank") or 1)
    found: dict[str, Any] = {"num_hidden_layers": layers}
    if model_type.startswith("qwen"):
        every = get("full_attention_interval", 4)
        said = get("attention.recurrent_layers") or [
            bool((layer + 1) % every) for layer in range(layers)
        ]
        kinds = ["linear_attention" if mixes else "full_attention" for mixes in said[:layers]]
        return {**found, "layer_types": kinds, "linear_value_head_dim": width}
    kv_heads = get("attention.head_count_kv") or ()
    if isinstance(kv_heads, int):
        kv_heads = (kv_heads,) * layers
    mixer = "conv" if model_type.startswith("lfm2") else "linear_attention"
    kinds = ["full_attention" if heads else mixer for heads in kv_heads[:layers]]
    found["num_key_value_heads"] = max(kv_heads, default=0)
    if get("context_length") == _ANY_LENGTH:
        found["max_position_embeddings"] = _TRAINED
    if model_type == "granitemoehybrid":
        found["mamba_expand"] = (get("ssm.inner_size") or 0) // get("embedding_length")
        found["mamba_d_head"] = width
        found["position_embedding_type"] = "rope" if get("rope.scaling.finetuned", True) else "nope"
    if model_type == "nemotron_h":
        feeds = get("feed_forward_length")[:layers]
        feed = "moe" if get("expert_count") else "mlp"
        kinds = [feed if rows else kind for rows, kind in zip(feeds, kinds, strict=True)]
        sizes = {"intermediate_size": max(feeds), "mamba_head_dim": width}
        return {**found, **sizes, "layers_block_type": kinds}
    return {**found, "layer_types": kinds}


def latent_facts(header: GgufHeader, model_type: str) -> dict[str, Any]:
    """Return the fields of a config of latent attention that no key holds by itself. Files before
    April 2025 have a head's widths where later ones have those of the row that all heads share."""
    get = header.get
    layers, dense = get("block_count") - get("nextn_predict_layers", 0), "leading_dense_block_count"
    key = get("attention.key_length_mla") or get("attention.key_length")
    groups, used = _GROUPS.get(get("expert_count"), (1, 1))
    groups, used = get("expert_group_count", groups), get("expert_group_used_count", used)
    found = {
        "num_hidden_layers": layers,
        "num_key_value_heads": get("attention.head_count"),
        "qk_nope_head_dim": key - get("rope.dimension_count"),
        "v_head_dim": get("attention.value_length_mla") or get("attention.value_length"),
        "q_lora_rank": get("attention.q_lora_rank"),
        "routed_scaling_factor": get("expert_weights_scale", 1.0),
        "norm_topk_prob": get("expert_weights_norm", False),
        "n_group": groups,
        "topk_group": used,
    }
    if model_type == "glm4_moe_lite":
        kinds = ["dense" if layer < get(dense, 0) else "sparse" for layer in range(layers)]
        return {**found, "mlp_layer_types": kinds}
    if model_type == "deepseek_v2":
        found["topk_method"] = "group_limited_greedy" if groups > 1 else "greedy"
    return {**found, "first_k_dense_replace": get(dense, 0)}


def gemma4_facts(header: GgufHeader, layer_types: list[str]) -> dict[str, Any]:
    """Return the fields of Gemma 4's config that no key holds by itself."""
    get, shapes = header.get, {tensor.name: tensor.shape for tensor in header.tensors}
    feeds, kv_heads = get("feed_forward_length"), get("attention.head_count_kv")
    if isinstance(kv_heads, int):
        kv_heads = (kv_heads,) * len(layer_types)
    wide = [layer for layer, kind in enumerate(layer_types) if kind == "full_attention"]
    apart = {
        layer: {"head_dim": get("attention.key_length"), "num_key_value_heads": kv_heads[layer]}
        for layer in wide
    }
    local = [heads for layer, heads in enumerate(kv_heads) if layer not in apart]
    table = shapes.get("per_layer_token_embd.weight")
    return {
        "intermediate_size": feeds if isinstance(feeds, int) else feeds[0],
        "use_double_wide_mlp": not isinstance(feeds, int) and feeds[-1] != feeds[0],
        "num_key_value_heads": (local or kv_heads)[0],
        "per_layer_config": apart,
        "attention_k_eq_v": f"blk.{min(wide, default=0)}.attn_v.weight" not in shapes,
        "enable_moe_block": bool(get("expert_count")),
        **({"vocab_size_per_layer_input": table[0]} if table else {}),
    }
