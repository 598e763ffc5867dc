"""Every family that is read from GGUF files: a tiny config, and what llama.cpp writes of it.

Written from llama.cpp's converter, not from the table that is tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers as hf

WINDOW = 9  # shorter than the prompt of the tests
_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
_EXPERT_KEYS = {"expert_count": 5, "expert_used_count": 2}
_QWEN_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
_WINDOW_KEY = {"attention.sliding_window": WINDOW}
_HEAD_KEYS = {"attention.key_length": 64, "attention.value_length": 64}
_MAMBA_KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.inner_size": 512,
    "ssm.time_step_rank": 8, "attention.head_count_kv": [0, 2, 0], "context_length": 1 << 20,
    "rope.dimension_count": 64, "rope.scaling.finetuned": False,
}  # fmt: skip
_MIXED = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_GRANITE_HYBRID = {
    **_MIXED, "shared_intermediate_size": 160, "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.6,
    "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_expand": 2,
    "num_local_experts": 0, "num_experts_per_tok": 0,
}  # fmt: skip
_GRANITE_KEYS = {
    "attention.scale": 0.2, "embedding_scale": 3.0, "logit_scale": 0.7, "residual_scale": 0.6,
    "expert_shared_feed_forward_length": 160,
}  # fmt: skip
_NEMOTRON: dict[str, Any] = {
    "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 2,
    "layer_norm_epsilon": 1e-5, "num_hidden_layers": None,
}  # fmt: skip
_LFM2 = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
         "block_auto_adjust_ff_dim": False}  # fmt: skip
_LFM2_KEYS = {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3}
_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 16, "linear_value_head_dim": 24,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
    },
}  # fmt: skip
_DELTA_KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 6,
    "ssm.inner_size": 144, "full_attention_interval": 4, "rope.dimension_count": 16,
    "rope.dimension_sections": [11, 11, 10, 0],
    "attention.recurrent_layers": [True, True, True, False],
}  # fmt: skip
_DELTA_EXPERTS = {
    **_DELTA, **_QWEN_EXPERTS, "shared_expert_intermediate_size": 64,
}  # fmt: skip
_DELTA_EXPERT_KEYS = {
    **_DELTA_KEYS, **_EXPERT_KEYS, "expert_feed_forward_length": 96,
    "expert_shared_feed_forward_length": 64,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24,
    "kv_lora_rank": 32, "v_head_dim": 12, "q_lora_rank": 20, "n_routed_experts": 6,
    "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "n_group": 1,
    "topk_group": 1, "routed_scaling_factor": 1.7,
}  # fmt: skip
_LATENT_KEYS = {
    "attention.head_count_kv": 1, "attention.kv_lora_rank": 32, "attention.q_lora_rank": 20,
    "attention.key_length": 48, "attention.value_length": 32, "attention.key_length_mla": 40,
    "attention.value_length_mla": 12, "rope.dimension_count": 16, "leading_dense_block_count": 1,
    "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 96,
    "expert_shared_count": 2, "expert_weights_scale": 1.7, "expert_weights_norm": True,
    "expert_group_count": 1, "expert_group_used_count": 1,
}  # fmt: skip
_GROUPS = {"n_group": 3, "topk_group": 2}
_GROUP_KEYS = {"expert_group_count": 3, "expert_group_used_count": 2}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_GEMMA4: dict[str, Any] = {
    "head_dim": 32, "global_head_dim": 64, "sliding_window": WINDOW, "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 2.0, "hidden_size_per_layer_input": 0, "num_key_value_heads": 2,
    "allow_global_per_layer_attribute_access": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 500.0,
                           "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}},
}  # fmt: skip
_GEMMA4_KEYS = {
    **_HEAD_KEYS, "attention.key_length_swa": 32, "attention.value_length_swa": 32,
    "rope.dimension_count": 64, "rope.dimension_count_swa": 32, "rope.freq_base_swa": 20.0,
    "attention.sliding_window_pattern": [True, True, False] * 2, "final_logit_softcapping": 2.0,
    "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0, **_WINDOW_KEY,
}  # fmt: skip
_ONE_KEY_HEAD = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
_ONE_KEY_HEAD_KEYS = {"attention.head_count_kv": [2, 2, 1] * 2}
_YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
    "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0,
    "attention_factor": 1.5,
}  # fmt: skip
_YARN_KEYS: dict[str, Any] = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128, "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_attn_factor": 1.5,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family, or a variant of one.

    Attributes:
        config: Its class.
        architecture: As llama.cpp calls it.
        own: Facts of the config that others do not have.
        keys: What the converter writes besides the sizes.
        drops: Sizes that it does not write.
    """

    config: Any
    architecture: str
    own: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    drops: tuple[str, ...] = ()


FAMILIES: dict[str, Family] = {
    "llama": Family(hf.LlamaConfig, "llama", keys={"rope.dimension_count": 64}),
    "llama with biases": Family(
        hf.LlamaConfig, "llama", {"attention_bias": True, "mlp_bias": True}
    ),
    "mixtral": Family(hf.MixtralConfig, "llama", _EXPERTS, _EXPERT_KEYS),
    "cohere": Family(
        hf.CohereConfig, "command-r",
        {"logit_scale": 0.4, "use_qk_norm": True, "layer_norm_eps": 1e-3},
        {"logit_scale": 0.4, "attention.layer_norm_epsilon": 1e-3, "rope.scaling.type": "none"},
        drops=("rms_norm_eps",),
    ),
    "cohere2": Family(
        hf.Cohere2Config, "cohere2",
        {"logit_scale": 0.4, "sliding_window": WINDOW, "num_hidden_layers": 4},
        {"logit_scale": 0.4, "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 64,
         "rope.scaling.type": "none", **_WINDOW_KEY},
        drops=("rms_norm_eps",),
    ),
    "deepseek_v2": Family(
        hf.DeepseekV2Config, "deepseek2",
        {**_LATENT, "q_lora_rank": None, "first_k_dense_replace": 1,
         "rope_parameters": {**_YARN, "attention_factor": None, "mscale": 0.707,
                             "mscale_all_dim": 0.707}},
        {**_LATENT_KEYS, **_YARN_KEYS, "rope.scaling.yarn_attn_factor": None,
         "rope.scaling.yarn_log_multiplier": 0.0707, "attention.q_lora_rank": None,
         "expert_weights_norm": None, "expert_gating_func": 1},
    ),
    "deepseek_v2 of 2024": Family(
        hf.DeepseekV2Config, "deepseek2",
        {**_LATENT, **_GROUPS, "first_k_dense_replace": 1, "topk_method": "group_limited_greedy",
         "keys_and_values_in_one": True},
        {**_LATENT_KEYS, **_GROUP_KEYS, "attention.head_count_kv": 4, "attention.key_length": 40,
         "attention.value_length": 12, "attention.key_length_mla": None,
         "attention.value_length_mla": None, "expert_weights_norm": None},
    ),
    "deepseek_v3": Family(
        hf.DeepseekV3Config, "deepseek2",
        {**_LATENT, **_GROUPS, "first_k_dense_replace": 1, "num_hidden_layers": 3},
        {**_LATENT_KEYS, **_GROUP_KEYS, "expert_gating_func": 2},
    ),
    "glm4_moe_lite": Family(
        hf.Glm4MoeLiteConfig, "deepseek2", _LATENT,
        {**_LATENT_KEYS, "tokenizer.ggml.pre": "glm4"},
    ),
    "gemma": Family(hf.GemmaConfig, "gemma", keys=_HEAD_KEYS, drops=("rope_theta",)),
    "gemma2": Family(
        hf.Gemma2Config, "gemma2",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 64, "attn_logit_softcapping": 0.5,
         "final_logit_softcapping": 2.0},
        {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, **_WINDOW_KEY,
         **_HEAD_KEYS},
    ),
    "gemma3": Family(
        hf.Gemma3TextConfig, "gemma3",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 64, "num_hidden_layers": 6,
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
             "sliding_attention": _PLAIN}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, **_WINDOW_KEY, **_HEAD_KEYS},
    ),
    "gemma3 with its local base": Family(
        hf.Gemma3TextConfig, "gemma3",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 64, "final_logit_softcapping": 2.0,
         "layer_types": ["full_attention", "sliding_attention"],
         "rope_parameters": {
             "full_attention": {"rope_type": "default", "rope_theta": 500.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}},
        {"rope.freq_base_swa": 20.0, "final_logit_softcapping": 2.0,
         "attention.sliding_window_pattern": [False, True], **_WINDOW_KEY, **_HEAD_KEYS},
    ),
    "gemma4": Family(
        hf.Gemma4TextConfig, "gemma4", {**_GEMMA4, **_ONE_KEY_HEAD},
        {**_GEMMA4_KEYS, **_ONE_KEY_HEAD_KEYS},
    ),
    "gemma4 with experts": Family(
        hf.Gemma4TextConfig, "gemma4",
        {**_GEMMA4, **_ONE_KEY_HEAD, "enable_moe_block": True, "num_experts": 5,
         "top_k_experts": 2, "moe_intermediate_size": 96},
        {**_GEMMA4_KEYS, **_ONE_KEY_HEAD_KEYS, **_EXPERT_KEYS, "expert_feed_forward_length": 96},
    ),
    "gemma4 with embeddings of layers": Family(
        hf.Gemma4TextConfig, "gemma4",
        {**_GEMMA4, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 262,
         "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
        {**_GEMMA4_KEYS, "attention.shared_kv_layers": 3, "embedding_length_per_layer_input": 16,
         "feed_forward_length": [256] * 3 + [512] * 3},
    ),
    "gpt_oss": Family(
        hf.GptOssConfig, "gpt-oss",
        {**_EXPERTS, "sliding_window": WINDOW, "rope_parameters": {**_YARN, "truncate": False}},
        {**_EXPERT_KEYS, **_YARN_KEYS, **_WINDOW_KEY, **_HEAD_KEYS,
         "expert_feed_forward_length": 256},
    ),
    "granite": Family(
        hf.GraniteConfig, "granite",
        {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "logits_scaling": 0.7,
         "residual_multiplier": 0.6},
        {"attention.scale": 0.2, "embedding_scale": 3.0, "logit_scale": 0.7,
         "residual_scale": 0.6, "rope.dimension_count": 64},
    ),
    "granite 4": Family(
        hf.GraniteMoeHybridConfig, "granitehybrid", _GRANITE_HYBRID,
        {**_MAMBA_KEYS, **_GRANITE_KEYS, "expert_count": 0},
    ),
    "granite 4 with experts and rope": Family(
        hf.GraniteMoeHybridConfig, "granitehybrid",
        {**_GRANITE_HYBRID, **_EXPERTS, "position_embedding_type": "rope"},
        {**_MAMBA_KEYS, **_GRANITE_KEYS, **_EXPERT_KEYS, "rope.scaling.finetuned": True,
         "context_length": 512},
    ),
    "lfm2": Family(hf.Lfm2Config, "lfm2", _LFM2, _LFM2_KEYS),
    "lfm2_moe": Family(
        hf.Lfm2MoeConfig, "lfm2moe",
        {**_LFM2, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
         "num_dense_layers": 1},
        {**_LFM2_KEYS, **_EXPERT_KEYS, "expert_feed_forward_length": 96,
         "leading_dense_block_count": 1, "expert_gating_func": 2},
    ),
    "nemotron_h": Family(
        hf.NemotronHConfig, "nemotron_h",
        {**_NEMOTRON, "layers_block_type": [
            "linear_attention", "mlp", "full_attention", "linear_attention", "mlp"]},
        {**_MAMBA_KEYS, **_HEAD_KEYS, "attention.layer_norm_epsilon": 1e-5,
         "attention.head_count_kv": [0, 0, 2, 0, 0], "feed_forward_length": [0, 256, 0, 0, 256]},
        drops=("rms_norm_eps", "rope_theta"),
    ),
    "nemotron_h with experts": Family(
        hf.NemotronHConfig, "nemotron_h_moe",
        {**_NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
         "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2,
         "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 64,
         "routed_scaling_factor": 1.5},
        {**_MAMBA_KEYS, **_HEAD_KEYS, "attention.layer_norm_epsilon": 1e-5,
         "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 96, 0, 96],
         "expert_count": 6, "expert_used_count": 2, "expert_group_count": 3,
         "expert_group_used_count": 2, "expert_feed_forward_length": 96,
         "expert_shared_feed_forward_length": 64, "expert_shared_count": 1,
         "expert_weights_norm": True, "expert_weights_scale": 1.5},
        drops=("rms_norm_eps", "rope_theta"),
    ),
    "qwen3_5": Family(hf.Qwen3_5TextConfig, "qwen35", _DELTA, {**_DELTA_KEYS, **_HEAD_KEYS}),
    "qwen3_5_moe": Family(
        hf.Qwen3_5MoeTextConfig, "qwen35moe", _DELTA_EXPERTS, {**_DELTA_EXPERT_KEYS, **_HEAD_KEYS}
    ),
    "qwen3_next": Family(
        hf.Qwen3NextConfig, "qwen3next", _DELTA_EXPERTS, {**_DELTA_EXPERT_KEYS, **_HEAD_KEYS}
    ),
    "olmo2": Family(hf.Olmo2Config, "olmo2"),
    "olmo3": Family(
        hf.Olmo3Config, "olmo2",
        {"sliding_window": WINDOW, "num_hidden_layers": 4,
         "rope_parameters": {
             "full_attention": _YARN,
             "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}},
        {**_YARN_KEYS, **_WINDOW_KEY,
         "attention.sliding_window_pattern": [True, True, True, False]},
    ),
    "phi3": Family(
        hf.Phi3Config, "phi3",
        {"sliding_window": WINDOW, "original_max_position_embeddings": 512,
         "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}},
        {"rope.dimension_count": 32, "rope.scaling.original_context_length": 512, **_WINDOW_KEY},
    ),
    "phi3 without a window": Family(
        hf.Phi3Config, "phi3", {"sliding_window": None, "original_max_position_embeddings": 512},
        {"rope.dimension_count": 64, "attention.sliding_window": 0,
         "rope.scaling.original_context_length": 512},
    ),
    "qwen2": Family(hf.Qwen2Config, "qwen2"),
    "qwen2_moe": Family(
        hf.Qwen2MoeConfig, "qwen2moe", {**_QWEN_EXPERTS, "shared_expert_intermediate_size": 64},
        {**_EXPERT_KEYS, "expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 64},
    ),
    "qwen3": Family(hf.Qwen3Config, "qwen3", keys=_HEAD_KEYS),
    "qwen3_moe": Family(
        hf.Qwen3MoeConfig, "qwen3moe", {**_QWEN_EXPERTS, "norm_topk_prob": True},
        {**_EXPERT_KEYS, **_HEAD_KEYS, "expert_feed_forward_length": 96},
    ),
    "smollm3": Family(
        hf.SmolLM3Config, "smollm3", {"num_hidden_layers": 4}, {"rope.dimension_count": 64}
    ),
}  # fmt: skip
# llama.cpp writes no head of its own for these.
ALWAYS_TIED = (
    *("cohere", "cohere2", "gemma", "gemma2", "gemma4", "gemma4 with experts", "lfm2", "lfm2_moe"),
    "gemma4 with embeddings of layers",
)
