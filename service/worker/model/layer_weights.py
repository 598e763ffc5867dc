"""A layer's norms, and its weights for kernels that compute more than a product."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu.decode_step import LayerWeights
from service.worker.kernels.gpu import residual_norm_gpu
from service.worker.model.projection import DenseProjection, LayerProjections, QuantisedProjection

PLAIN_NORMS = frozenset(
    f"{family}RMSNorm"
    for family in (
        *("Granite", "Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3"),
        *("Qwen3Moe", "SmolLM3"),
    )
)
"""transformers has one class per family, and these compute the same. Others do not: Gemma's adds
one to the weight, OLMo 2's rounds later."""

FOR_KERNELS = (DenseProjection, QuantisedProjection)
"""Projections whose weights a kernel may multiply by itself."""


def norm(module: Any, x: Tensor) -> Tensor:
    """Return the norm of x, `[m, width]` or `[m, heads, width]`, by a transformers module."""
    if is_plain(module) and residual_norm_gpu.supports(x):
        return residual_norm_gpu.normalise(x, module.weight, module.variance_epsilon)
    if is_plain(module) and x.device.type == "cuda":
        return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)
    normed: Tensor = module(x)
    return normed


def is_plain(module: Any) -> bool:
    """Return whether a norm computes what Llama's does."""
    return type(module).__name__ in PLAIN_NORMS


def layer_weights(block: Any, parts: LayerProjections) -> LayerWeights | None:
    """Return the weights of a layer like Llama's or Qwen3's; None if it is of another kind."""
    if not is_plain(block.input_layernorm):
        return None
    qkv, o, gate_up, down = parts.qkv, parts.output, parts.gate_up, parts.down
    if not (isinstance(qkv, FOR_KERNELS) and isinstance(o, FOR_KERNELS)):
        return None
    if not (isinstance(gate_up, FOR_KERNELS) and isinstance(down, FOR_KERNELS)):
        return None
    q_norm, k_norm = (getattr(block.self_attn, name, None) for name in ("q_norm", "k_norm"))
    return LayerWeights(
        # Tensors of their own, which hold the memory whatever becomes of the modules.
        norm=block.input_layernorm.weight.detach(),
        q_norm=q_norm and q_norm.weight.detach(), k_norm=k_norm and k_norm.weight.detach(),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        qkv=qkv.stored, o=o.stored, gate_up=gate_up.stored, down=down.stored,
    )  # fmt: skip
