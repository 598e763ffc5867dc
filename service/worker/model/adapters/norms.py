"""RMSNorm of a stock module: by the kernel that takes one pass, or by the module itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.kernels.cpu import rms_norm

# transformers writes them apart and alike; others of that name (Gemma's adds one to the weight) do
# something else.
KNOWN = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})


def norm(module: Any, x: Tensor) -> Tensor:
    """x `[m, width]` or `[m, heads, width]`, normed."""
    kernel = rms_norm.kernel_for(module.weight, x) if _known(module) else None
    if kernel is None:
        normed: Tensor = module(x)
        return normed
    return kernel.norm(x, module.weight, module.variance_epsilon)


def add_and_norm(module: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """x + y `[m, width]`, and that normed."""
    kernel = rms_norm.kernel_for(module.weight, x, y) if _known(module) else None
    if kernel is None:
        x = x + y
        return x, module(x)
    return kernel.add_and_norm(x, y, module.weight, module.variance_epsilon)


def _known(module: Any) -> bool:
    return type(module).__name__ in KNOWN
