"""RMSNorm of a transformers module: by torch's own in one pass on a GPU, else by the module."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

# transformers has one class per family, and these compute the same. Others do not: Gemma's adds one
# to the weight, OLMo 2's rounds later.
KNOWN = frozenset(
    f"{family}RMSNorm"
    for family in (
        *("Granite", "Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3"),
        *("Qwen3Moe", "SmolLM3"),
    )
)


def norm(module: Any, x: Tensor) -> Tensor:
    """The norm of x, `[m, width]` or `[m, heads, width]`."""
    if is_plain(module) and x.device.type == "cuda":
        return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)
    normed: Tensor = module(x)
    return normed


def is_plain(module: Any) -> bool:
    """Whether it computes what Llama's does."""
    return type(module).__name__ in KNOWN
