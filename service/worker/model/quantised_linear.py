"""Quantising a model's linear modules when it is loaded."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.errors import ModelRefused
from service.worker.kernels.cpu.weight import GROUP, Weight, quantised

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


def quantise(model: Any, method: str) -> None:
    """Replaces the linear modules of the layers and the head. Embeddings and norms stay.

    The head is never below 8 bits: it decides between tokens by itself, after all layers.

    Args:
        model: a transformers model with weights that are not quantised, on its device.
        method: "int8" or "int4".

    Raises:
        ModelRefused: some weights cannot be quantised in this way.
    """
    bits = BITS[method]
    if any(hasattr(module, "experts") for module in model.model.modules()):
        raise ModelRefused(
            f"quantize {method} takes no model with experts, most of whose weights would stay as "
            "they are: use --quantize off",
            field="quantize",
        )
    for layer in model.model.layers:
        linears = [(n, m) for n, m in layer.named_modules() if isinstance(m, nn.Linear)]
        for name, linear in linears:
            if type(linear.weight) is not nn.Parameter or not linear.weight.is_floating_point():
                raise ModelRefused(
                    f"the weights of this model are quantised already: --quantize {method} takes "
                    "a checkpoint in bfloat16, float16 or float32",
                    field="quantize",
                )
            if bits == 4 and linear.in_features % GROUP:
                raise ModelRefused(
                    f"quantize int4 needs widths that are multiples of {GROUP}, and {name} has "
                    f"{linear.in_features}: use int8",
                    field="quantize",
                )
            layer.set_submodule(name, QuantisedLinear(linear, bits))
    with torch.no_grad():
        model.lm_head = QuantisedLinear(model.lm_head, 8)
