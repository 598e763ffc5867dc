"""Linear modules that read the same rows, joined into one product without a second copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from service.worker.kernels.cpu import huge_pages


@dataclass(frozen=True)
class Joined:
    """weight `[sum of outs, in]` and bias of several linear modules, one after the other."""

    weight: Tensor
    bias: Tensor | None


def join(*modules: Any) -> Joined:
    """One weight of all modules (of one: the same, in memory that streams well); their own
    parameters become views of it, so they go on working and no memory is spent but one block's for
    a moment."""
    weight = _joined([m.weight for m in modules])
    biases = [m.bias for m in modules]
    if all(b is None for b in biases):
        return Joined(weight, None)
    assert None not in biases, "projections of one kind all have a bias or none has"
    return Joined(weight, _joined(biases))


def _joined(parameters: list[nn.Parameter]) -> Tensor:
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
