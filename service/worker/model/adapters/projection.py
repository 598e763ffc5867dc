"""Rows times the weights of linear modules: every place where a decoder multiplies by weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from service.worker.kernels.cpu import cpu_linear, huge_pages


class Projection(Protocol):
    """One linear module, or several that read the same rows, one after the other."""

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        """x `[m, in]` → `[m, sum of out]`; `batch` as in `DecoderAdapter`."""
        ...


@dataclass(frozen=True)
class DenseProjection:
    """A projection with weights as the checkpoint has them.

    Attributes:
        weight: `[sum of out, in]`.
        bias: `[sum of out]`, or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return cpu_linear.linear(x, self.weight, self.bias, batch=batch)


@dataclass(frozen=True)
class LayerProjections:
    """The projections of a layer.

    Attributes:
        qkv: to queries, keys and values.
        output: of what was attended.
        gate_up: of a gated MLP to gate and up; None if the layer has no such MLP.
        down: of the MLP's inner values; None together with `gate_up`.
    """

    qkv: Projection
    output: Projection
    gate_up: Projection | None
    down: Projection | None


def fuse(*modules: Any) -> DenseProjection:
    """Concatenates the modules' parameters in huge pages; also useful for a single module.

    The modules' own parameters become views of the result, so the modules keep working, and extra
    memory is needed only for a moment, for one module group.
    """
    weight = _concatenated([m.weight for m in modules])
    biases = [getattr(m, "bias", None) for m in modules]
    if all(b is None for b in biases):
        return DenseProjection(weight)
    assert None not in biases, "projections of one kind all have a bias or none has"
    return DenseProjection(weight, _concatenated(biases))


def _concatenated(parameters: Sequence[Any]) -> Tensor:
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
