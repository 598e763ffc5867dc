"""Quantising a model's linear modules when it is loaded."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from service.worker.kernels.cpu.weight import Weight, quantised

BITS = {"int8": 8, "int4": 4}
"""By the setting `quantize`."""


class QuantisedLinear(nn.Module):
    """A linear module with a quantised weight, in place of transformers' own.

    So transformers' forward, which the start-up check compares with, uses the same weights: it
    multiplies by the dequantised ones.
    """

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        self.weight = quantised(linear.weight, bits)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.dequantised(x.dtype), self.bias)


def quantised_weight(module: Any) -> Weight | None:
    """The quantised weight of a linear module; None if it is stored as kernels do not read it.

    They read torchao's int8 with a scale for each row, too, where activations are not rounded.
    """
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, QuantisedLinear):
        return Weight(module.weight.values, module.weight.scales, module.bias)
    if type(module) is not nn.Linear or type(weight).__name__ != "Int8Tensor":
        return None
    rounds_rows = any(
        getattr(weight, name, None) is not None for name in ("act_quant_kwargs", "act_pre_scale")
    )
    shift, scale = getattr(weight, "zero_point", None), weight.scale
    if rounds_rows or scale.shape != (len(weight), 1) or (shift is not None and bool(shift.any())):
        return None
    on_cpu = weight.qdata.device.type == "cpu"
    return Weight(weight.qdata, scale.float().flatten(), module.bias) if on_cpu else None


def quantise(model: Any, method: str) -> None:
    """Replaces the linear modules of the layers and the head. Embeddings and norms stay.

    The head is never below 8 bits: it decides between tokens by itself, after all layers.

    Args:
        model: a transformers model that `quantisation_fault` finds nothing wrong with, on its
            device.
        method: "int8" or "int4".

    """
    bits = BITS[method]
    for layer in model.model.layers:
        linears = [(n, m) for n, m in layer.named_modules() if isinstance(m, nn.Linear)]
        for name, linear in linears:
            layer.set_submodule(name, QuantisedLinear(linear, bits))
    model.lm_head = QuantisedLinear(model.lm_head, 8)
