"""Linear layers whose weights are quantised: chooses the way by the number of rows.

Few rows are multiplied with the weights as they are stored, where the kernel `linear_few_rows`
takes them. For more rows, or without the kernel, a part of the weight at a time is dequantised and
multiplied by what `cpu_linear` has for weights that are not quantised, so there is never a whole
dequantised weight in memory. On a GPU, too: quantising then only saves memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from torch import Tensor

from service.worker.kernels.cpu import cpu_linear, linear_few_rows
from service.worker.kernels.cpu.weight import Weight


def linear(x: Tensor, weight: Weight, *, batch: bool = False) -> Tensor:
    """x `[m, in]` → `[m, out]` in x's dtype; `batch` as in `cpu_linear.linear`."""
    if linear_few_rows.supports_product(x, weight, batch=batch):
        return linear_few_rows.product(x, weight)
    out = x.new_empty(len(x), weight.shape[0])
    for part, tile in weight.tiles():
        out[:, part] = cpu_linear.linear(x, tile.dequantised(x.dtype), tile.bias, batch=batch)
    return out


def gated_mlp(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    activation: Callable[[Tensor], Tensor],
    *,
    batch: bool = False,
) -> Generator[None, None, Tensor]:
    """down · (activation(gate · x) * (up · x)); `gate_up` has the rows of gate, then those of up.

    Yields:
        None between parts of the weights, so that other work can run in between.
    """
    width = gate_up.shape[0] // 2
    if linear_few_rows.supports_product(x, gate_up, batch=batch):
        gate, up = linear_few_rows.product(x, gate_up).chunk(2, dim=-1)
        return linear(activation(gate).mul_(up), down, batch=batch)
    inner, out = x.new_empty(len(x), width), x.new_empty(len(x), down.shape[0])
    ups = gate_up.rows(slice(width, None))
    for part, gates in gate_up.rows(slice(width)).tiles():
        gated, upper = (
            cpu_linear.linear(x, tile.dequantised(x.dtype), tile.bias, batch=batch)
            for tile in (gates, ups.rows(part))
        )
        inner[:, part] = activation(gated).mul_(upper)
        yield None
    for part, tile in down.tiles():
        out[:, part] = cpu_linear.linear(inner, tile.dequantised(x.dtype), tile.bias, batch=batch)
        yield None
    return out
