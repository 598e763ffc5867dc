"""RMSNorm of a transformers module: in one pass by the CPU kernel or by torch's own on a GPU, or by
the module itself, which takes eight."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import rms_norm

# transformers has one class per family, and these compute the same. Others do not: Gemma's adds one
# to the weight.
KNOWN = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})


def norm(module: Any, x: Tensor) -> Tensor:
    """The norm of x, `[m, width]` or `[m, heads, width]`."""
    if is_plain(module) and x.device.type == "cuda":
        return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)
    kernel = rms_norm.kernel_for(module.weight, x) if is_plain(module) else None
    if kernel is None:
        normed: Tensor = module(x)
        return normed
    return kernel.norm(x, module.weight, module.variance_epsilon)


def add_and_norm(module: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """x + y `[m, width]`, and the norm of the sum."""
    kernel = rms_norm.kernel_for(module.weight, x, y) if is_plain(module) else None
    if kernel is None:
        x = x + y
        return x, norm(module, x)
    return kernel.add_and_norm(x, y, module.weight, module.variance_epsilon)


def is_plain(module: Any) -> bool:
    """Whether it computes what Llama's does."""
    return type(module).__name__ in KNOWN
