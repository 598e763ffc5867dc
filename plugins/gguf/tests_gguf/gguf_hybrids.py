"""What llama.cpp's converter writes of the weights of hybrids, latent attention and Gemma 4:
names, and where rows are moved."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAMBA = {
    "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d", "conv1d.weight": "ssm_conv1d.weight",
    "conv1d.bias": "ssm_conv1d.bias", "in_proj.weight": "ssm_in.weight",
    "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight",
}  # fmt: skip
NAMES = {
    "operator_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "conv.conv.weight": "shortconv.conv.weight",
    "conv.in_proj.weight": "shortconv.in_proj.weight",
    "conv.out_proj.weight": "shortconv.out_proj.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "self_attn.q_layernorm.weight": "attn_q_norm.weight",
    "self_attn.k_layernorm.weight": "attn_k_norm.weight",
    "feed_forward.w1.weight": "ffn_gate.weight",
    "feed_forward.w2.weight": "ffn_down.weight",
    "feed_forward.w3.weight": "ffn_up.weight",
    "feed_forward.gate.weight": "ffn_gate_inp.weight",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "feed_forward.experts.down_proj": "ffn_down_exps.weight",
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
    **{f"mamba.{ours}": theirs for ours, theirs in MAMBA.items()},
    **{f"mixer.{ours}": theirs for ours, theirs in MAMBA.items()},
    "norm.weight": "attn_norm.weight",
    "mixer.q_proj.weight": "attn_q.weight",
    "mixer.k_proj.weight": "attn_k.weight",
    "mixer.v_proj.weight": "attn_v.weight",
    "mixer.o_proj.weight": "attn_output.weight",
    "mixer.up_proj.weight": "ffn_up.weight",
    "mixer.down_proj.weight": "ffn_down.weight",
    "mixer.gate.weight": "ffn_gate_inp.weight",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.experts.up_proj": "ffn_up_exps.weight",
    "mixer.experts.down_proj": "ffn_down_exps.weight",
    "mixer.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mixer.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.kv_b_proj.weight": "attn_kv_b.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}
HYBRIDS = (
    *("deepseek_v2", "deepseek_v3", "gemma4_text", "glm4_moe_lite"),
    *("granitemoehybrid", "lfm2", "lfm2_moe", "nemotron_h"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
)


def hybrid_parts(within: str, values: NDArray[Any], config: Any) -> dict[str, NDArray[Any]] | None:
    """The tensors of a weight within a layer; None for one that is written as Llama's is."""
    if within.endswith("in_proj_qkvz.weight"):
        return _apart(values, config)
    in_one = getattr(config, "keys_and_values_in_one", False)
    if within.endswith("kv_b_proj.weight") and not in_one:
        by_head = values.reshape(config.num_attention_heads, -1, values.shape[1])
        keys, values = np.split(by_head, [config.qk_nope_head_dim], axis=1)
        return {"attn_k_b.weight": keys.swapaxes(1, 2), "attn_v_b.weight": values}
    if config.model_type != "gemma4_text" and within.endswith(
        ("experts.gate_up_proj", "input_linear.weight")
    ):
        many = config.model_type != "granitemoehybrid" or config.num_local_experts
        end = "_exps" if "experts" in within else "_shexp" if many else ""
        gate, up = np.split(values, 2, axis=-2)
        return {f"ffn_gate{end}.weight": gate, f"ffn_up{end}.weight": up}
    if within == "shared_mlp.output_linear.weight":
        return {f"ffn_down{'_shexp' if config.num_local_experts else ''}.weight": values}
    if within not in NAMES:
        return None
    if within.endswith("A_log"):
        values = -np.exp(values)
    if within.endswith(("conv.conv.weight", "conv1d.weight")):
        values = values[:, 0]
    if within.startswith(("mamba.", "mixer.")):
        if within.endswith((".A_log", ".D")):
            values = values[:, None]
        if within.endswith(".norm.weight"):
            groups = getattr(config, "mamba_n_groups", None) or config.n_groups
            values = values.reshape(groups, -1)
    if config.model_type.startswith("qwen3_5") and within.startswith("linear_attn."):
        values = _in_turns(within, values, config)
    return {NAMES[within]: values}


def _apart(rows: NDArray[Any], config: Any) -> dict[str, NDArray[Any]]:
    """Queries of all key heads, then keys, then values; and the gates."""
    heads, key = config.linear_num_key_heads, config.linear_key_head_dim
    value = config.linear_num_value_heads // heads * config.linear_value_head_dim
    by_head = rows.reshape(heads, 2 * (key + value), -1)
    q, k, v, z = np.split(by_head, [key, 2 * key, 2 * key + value], axis=1)
    joined = np.concatenate([part.reshape(-1, rows.shape[1]) for part in (q, k, v)])
    return {"attn_qkv.weight": joined, "attn_gate.weight": z.reshape(-1, rows.shape[1])}


def _in_turns(within: str, values: NDArray[Any], config: Any) -> NDArray[Any]:
    """Value heads: the first one of every key head, then the second ones."""
    heads, each = config.linear_num_key_heads, config.linear_value_head_dim
    if within.endswith((".norm.weight",)):
        return values
    if within.endswith(("_a.weight", "_b.weight", "A_log", "dt_bias")):
        each = 1
    keep = 0
    if within.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        keep = 2 * heads * config.linear_key_head_dim
    if within.endswith("out_proj.weight"):
        return _in_turns("in_proj_z.weight", values.T, config).T
    moved = values[keep:].reshape(heads, -1, each, *values.shape[1:]).swapaxes(0, 1)
    return np.concatenate([values[:keep], moved.reshape(-1, *values.shape[1:])])
