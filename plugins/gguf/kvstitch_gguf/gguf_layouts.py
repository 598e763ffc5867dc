"""Puts weights from llama.cpp's layout into transformers'."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from kvstitch_gguf.gguf_families import GgufFamily


def as_transformers(
    family: GgufFamily, config: Any, name: str, parts: list[Tensor], *, head_dim: int
) -> Tensor:
    """Return a weight as transformers holds it, of the tensors that llama.cpp made of it."""
    mixed = _mixer_weight(config, name, parts) if family.hybrid else None
    if mixed is not None:
        return mixed
    if name.endswith("kv_b_proj.weight") and len(parts) > 1:
        keys, values = parts  # [heads, latent, key], [heads, value, latent]
        return torch.cat([keys.transpose(1, 2), values], dim=1).flatten(0, 1)
    if "experts.gate_up_proj" in name or "mlp.experts." in name:
        return _experts(parts) if not family.alternates else _alternating_experts(parts)
    (weight,) = parts
    if family.norm_offset and name.endswith("norm.weight"):
        return weight - family.norm_offset
    if family.turns_pairs and re.search(r"\.[qk]_proj\.", name):
        # rows (head, i, half) → (head, half, i)
        pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
        return pairs.transpose(1, 2).reshape(weight.shape)
    return weight


def _experts(parts: list[Tensor]) -> Tensor:
    """Return experts' weights `[experts, out, in]`, the gates' rows before those of `up`."""
    return torch.cat(parts, dim=1)


def _alternating_experts(parts: list[Tensor]) -> Tensor:
    """Return experts' weights `[experts, in, out]` or biases `[experts, out]`, a row of `up` behind
    every gate's."""
    rows = torch.stack(parts, dim=2).flatten(1, 2)
    return rows.transpose(1, 2) if rows.ndim > 2 else rows


def _mixer_weight(config: Any, name: str, parts: list[Tensor]) -> Tensor | None:
    """Return a weight of a hybrid as transformers holds it, of the tensors that llama.cpp made of
    it; None for a tensor that is the same in both."""
    if name.endswith("in_proj_qkvz.weight"):
        return _by_key_head(config, *parts)
    if len(parts) > 1:
        return torch.cat(parts, dim=-2)
    (weight,) = parts
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return weight.flatten()  # by group
    if name.endswith("A_log"):
        weight = (-weight).log()
    elif ".linear_attn." not in name:
        return None
    if config.model_type.startswith("qwen3_5") and ".linear_attn." in name:
        return _in_groups(config, name, weight)
    return weight


def _by_key_head(config: Any, qkv: Tensor, gates: Tensor) -> Tensor:
    """Return rows of every key head together: its query, key, values and gates (Qwen3-Next)."""
    heads, key = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    parts = [*torch.split(qkv, [heads * key, heads * key, values]), gates]
    return torch.cat([x.reshape(heads, -1, x.shape[-1]) for x in parts], 1).flatten(0, 1)


def _in_groups(config: Any, name: str, weight: Tensor) -> Tensor:
    """Return value heads in the order of their key heads: llama.cpp writes the first of every key
    head, then the second ones (Qwen3.5)."""
    key_heads, width = config.linear_num_key_heads, config.linear_value_head_dim
    share = config.linear_num_value_heads // key_heads
    keys = 2 * key_heads * config.linear_key_head_dim

    def grouped(x: Tensor, each: int) -> Tensor:
        rows = x.reshape(share, key_heads, each, *x.shape[1:])
        return rows.transpose(0, 1).reshape(x.shape)

    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return torch.cat([weight[:keys], grouped(weight[keys:], width)])
    if name.endswith("in_proj_z.weight"):
        return grouped(weight, width)
    if name.endswith("out_proj.weight"):
        return grouped(weight.T, width).T
    if name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        return grouped(weight, 1)
    return weight
