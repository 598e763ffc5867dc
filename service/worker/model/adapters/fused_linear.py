"""Fuses linear modules that read the same rows into one product, without a second copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from service.worker.kernels.cpu import huge_pages


@dataclass(frozen=True)
class FusedLinear:
    """Several linear modules, one after the other.

    Attributes:
        weight: `[sum of out, in]`.
        bias: `[sum of out]`, or None.
    """

    weight: Tensor
    bias: Tensor | None


def fuse(*modules: Any) -> FusedLinear:
    """Concatenates the modules' parameters in huge pages; also useful for a single module.

    The modules' own parameters become views of the result, so the modules keep working, and extra
    memory is needed only for a moment, for one module group.
    """
    weight = _concatenated([m.weight for m in modules])
    biases = [m.bias for m in modules]
    if all(b is None for b in biases):
        return FusedLinear(weight, None)
    assert None not in biases, "projections of one kind all have a bias or none has"
    return FusedLinear(weight, _concatenated(biases))


def _concatenated(parameters: list[nn.Parameter]) -> Tensor:
    first = parameters[0].detach()
    shape = (sum(len(p) for p in parameters), *first.shape[1:])
    whole = huge_pages.zeros(shape, dtype=first.dtype, device=first.device)
    at = 0
    with torch.no_grad():
        for parameter in parameters:
            part = whole[at : at + len(parameter)]
            parameter.data = part.copy_(parameter)
            at += len(parameter)
    return whole
