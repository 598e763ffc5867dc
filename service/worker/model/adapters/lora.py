"""LoRA adapters beside the weights: what they add to a decoder's products.

A LoRA adapter adds B·A·x to products W·x, with A `[rank, in]` and B `[out, rank]`. The base model's
weights stay as they are, so that several adapters and the base model itself can be computed in one
batch: each row gets what its own adapter adds. How an adapter's rows are multiplied does not depend
on the other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import cpu_linear, linear_few_rows
from service.worker.model.adapters.projection import LayerProjections, Projection


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to one linear module of a projection.

    Attributes:
        a: `[rank, in]`.
        b: `[out, rank]`, multiplied by the adapter's scale.
        first: which of the projection's outputs is the module's first.
    """

    a: Tensor
    b: Tensor
    first: int = 0


class LoraUpdate:
    """What an adapter adds to a projection.

    Args:
        parts: one for each module that the adapter changes.
    """

    def __init__(self, parts: Sequence[LowRank]) -> None:
        padded = [_padded(part) for part in parts]
        self._a = torch.cat([part.a for part in padded])
        ranks = self._a.tensor_split(_ends(padded)[:-1])
        self.parts = [replace(part, a=a) for part, a in zip(padded, ranks, strict=True)]

    def add(self, out: Tensor, x: Tensor, rows: Tensor | None, *, batch: bool) -> None:
        """Adds to a projection's output.

        Args:
            out: `[m, sum of out]`, of all rows.
            x: what the projection read `[m, in]`.
            rows: those that are the adapter's `[k]`, each once; None for all.
            batch: as in `DecoderAdapter`.
        """
        inner = cpu_linear.linear(x if rows is None else x[rows], self._a, batch=batch)
        cuts = inner.tensor_split(_ends(self.parts)[:-1], dim=1)
        for part, own in zip(self.parts, cuts, strict=True):
            target = out[:, part.first : part.first + len(part.b)]
            added = cpu_linear.linear(own, part.b, batch=batch)
            target.add_(added) if rows is None else target.index_add_(0, rows, added)


@dataclass(frozen=True)
class LoraLayer:
    """What an adapter adds to the projections of a layer, which have the same names; None for
    nothing."""

    qkv: LoraUpdate | None = None
    output: LoraUpdate | None = None
    gate_up: LoraUpdate | None = None
    down: LoraUpdate | None = None


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter in the form that a decoder computes with.

    Attributes:
        name: what requests call it.
        fingerprint: hash of all that KV computed with it depends on; its name is not.
        layers: what it adds to each layer.
        rank: the largest of its modules'.
        modules: names of the modules that it changes, sorted.
    """

    name: str
    fingerprint: str
    layers: Sequence[LoraLayer]
    rank: int
    modules: tuple[str, ...]


@dataclass(frozen=True)
class LoraProjection:
    """A projection, and what adapters add to it.

    Attributes:
        base: of the base model.
        updates: each with the rows that it is for `[k]`; None for all rows.
    """

    base: Projection
    updates: Sequence[tuple[Tensor | None, LoraUpdate]]

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        out = self.base(x, batch=batch)
        for rows, update in self.updates:
            update.add(out, x, rows, batch=batch)
        return out


def with_updates(
    projections: Sequence[LayerProjections], loras: Sequence[tuple[Tensor | None, Lora]]
) -> list[LayerProjections]:
    """A decoder's projections with what adapters add, each for some rows `[k]` or, if None, all."""
    out: list[LayerProjections] = []
    for number, layer in enumerate(projections):
        changed: dict[str, Projection] = {}
        for field in fields(LoraLayer):
            base = getattr(layer, field.name)
            updates = [(rows, getattr(lora.layers[number], field.name)) for rows, lora in loras]
            wanted = [(rows, update) for rows, update in updates if update is not None]
            if base is not None and wanted:
                changed[field.name] = LoraProjection(base, wanted)
        out.append(replace(layer, **changed))
    return out


def rows_by_name(names: Sequence[str], device: torch.device) -> Mapping[str, Tensor]:
    """The rows of every adapter `[k]`, from the adapter's name for every row; "" is the base."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name:
            rows.setdefault(name, []).append(row)
    return {name: torch.tensor(numbers, device=device) for name, numbers in rows.items()}


def _ends(parts: Sequence[LowRank]) -> list[int]:
    """Where the ranks of each part end among those of all."""
    return list(accumulate(len(part.a) for part in parts))


def _padded(part: LowRank) -> LowRank:
    """The same with as many ranks as the kernel for few rows takes; the new ones add nothing."""
    if part.a.device.type != "cpu" or part.a.dtype != torch.bfloat16:
        return part
    more = -len(part.a) % linear_few_rows.LANES
    return LowRank(F.pad(part.a, (0, 0, 0, more)), F.pad(part.b, (0, more)), part.first)
