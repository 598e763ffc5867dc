"""LoRA adapters beside the weights: B·A·x is added to products W·x, with A `[rank, in]` and B
`[out, rank]`. In a batch each row gets what its own adapter adds, however the other rows are
multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.messages.replies import LoraInfo
from kvstitch.service.worker.kernels.cpu import cpu_linear, linear_few_rows
from kvstitch.service.worker.model.projection import LayerProjections, Projection


@dataclass(frozen=True)
class LoraUpdate:
    """What an adapter adds to a projection: B·A·x."""

    a: Tensor
    b: Tensor

    @classmethod
    def of(cls, parts: Sequence[ModuleUpdate], width: int) -> LoraUpdate:
        """Join what is added to the modules that the adapter changes."""
        a = torch.cat([part.a for part in parts])
        b, rank = a.new_zeros(width, len(a)), 0
        for part in parts:
            out, ranks = part.b.shape
            b[part.first : part.first + out, rank : rank + ranks] = part.b
            rank += ranks
        if a.device.type == "cpu" and a.dtype == torch.bfloat16:
            # As many ranks as the kernel for few rows takes; the new ones add nothing.
            more = -rank % linear_few_rows.LANES
            a, b = F.pad(a, (0, 0, 0, more)), F.pad(b, (0, more))
        return cls(a, b)

    def add(self, out: Tensor, x: Tensor, rows: Tensor | None, *, batch: bool) -> None:
        """Add to a projection's output."""
        inner = cpu_linear.linear(x if rows is None else x[rows], self.a, batch=batch)
        added = cpu_linear.linear(inner, self.b, batch=batch)
        out.add_(added) if rows is None else out.index_add_(0, rows, added)


@dataclass(frozen=True)
class ModuleUpdate(LoraUpdate):
    """What an adapter adds to one linear module, whose outputs begin at `first` of those of its
    projection."""

    first: int = 0


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter in the form that a decoder computes with: what it adds to the projections of
    every layer, by their names in `LayerProjections`."""

    info: LoraInfo
    layers: Sequence[Mapping[str, LoraUpdate]]


@dataclass(frozen=True)
class LoraProjection:
    """A projection, and what adapters add to it."""

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
    """Return projections with what adapters add, each for some rows `[k]` or, if None, all."""
    out: list[LayerProjections] = []
    for number, layer in enumerate(projections):
        changed: dict[str, Projection] = {}
        for field in fields(LayerProjections):
            base = getattr(layer, field.name)
            updates = [(rows, lora.layers[number].get(field.name)) for rows, lora in loras]
            wanted = [(rows, update) for rows, update in updates if update is not None]
            if base is not None and wanted:
                changed[field.name] = LoraProjection(base, wanted)
        out.append(replace(layer, **changed))
    return out


def rows_by_name(names: Sequence[str], device: torch.device) -> Mapping[str, Tensor]:
    """Return the rows of every adapter `[k]`, from its name for every row; "" is the base."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name:
            rows.setdefault(name, []).append(row)
    return {name: torch.tensor(numbers, device=device) for name, numbers in rows.items()}
