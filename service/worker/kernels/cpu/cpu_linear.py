"""Linear layers on a CPU: chooses the fastest way for the number of rows, our kernels first.

The rest goes to torch. Many CPUs multiply bfloat16 at about half the rate of fp32. There, weights
are converted to fp32 tile by tile into a buffer that stays in the L2 cache, and only the result is
rounded. With few rows the time goes into reading the weights, so these stay with torch's 16-bit
product.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import (
    linear_few_rows,
    linear_fp32,
    linear_many_rows_bf16,
    linear_many_rows_fp32,
    native,
)
from kvstitch.service.worker.kernels.cpu.weight import Weight

# From this many rows on, the faster product outweighs converting the weights: where oneDNN knows
# AVX2 alone, it takes 0.7 of the time at 12 rows, 0.4 at 32, and as long at 8.
MIN_ROWS = 12
# Weight rows per tile: 512 rows of 896 columns are 1.8 MB in fp32.
TILE = 512
# Work between two pauses, in rows times weight rows: about 10 ms.
PAUSE = 1 << 19


@cache
def _has_slow_bf16_products() -> bool:
    return not torch.cpu._is_amx_tile_supported() and not native.has_bf16_dot()


def has_slow_16_bit_products(x: Tensor) -> bool:
    """Return whether x has a 16-bit dtype that this CPU multiplies slower than fp32."""
    if x.device.type != "cpu":
        return False
    if x.dtype == torch.float16:  # fast only on CPUs with tile units
        return not torch.cpu._is_amx_tile_supported()
    return x.dtype == torch.bfloat16 and _has_slow_bf16_products()


def is_faster_in_fp32(x: Tensor) -> bool:
    """Return whether products with the rows x `[m, in]` are faster in fp32."""
    return len(x) >= MIN_ROWS and has_slow_16_bit_products(x)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, batch: bool = False) -> Tensor:
    """x `[m, in]`, weight `[out, in]`, bias `[out]` → `[m, out]` in x's dtype.

    In a `batch` the rows belong to different sequences: up to `linear_few_rows.MAX_BATCH` of them
    one kernel is used whatever their number, so that an answer does not depend on what else is
    decoded.
    """
    if linear_few_rows.supports(x, weight, batch=batch):
        return linear_few_rows.linear(x, weight, bias)
    if linear_many_rows_bf16.supports(x, weight):
        return linear_many_rows_bf16.linear(x, weight, bias)
    if linear_fp32.supports(x, whole := Weight(weight, bias=bias)):
        return linear_fp32.product(x, whole)
    if has_slow_16_bit_products(x) and linear_many_rows_fp32.supports(x, weight):
        return linear_many_rows_fp32.linear(x, weight, bias)
    if not is_faster_in_fp32(x):
        return F.linear(x, weight, bias)
    rows, out = x.float(), x.new_empty((len(x), len(weight)), dtype=torch.float32)
    scratch = _scratch(weight[:TILE])
    for a in range(0, len(weight), TILE):
        tile = _to_fp32(weight[a : a + TILE], scratch)
        torch.mm(rows, tile.t(), out=out[:, a : a + TILE])
    return (out if bias is None else out.add_(bias)).to(x.dtype)


Activation = Callable[[Tensor], Tensor]


def supports_gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    activation: Activation,
    *,
    batch: bool = False,
) -> bool:
    """Return whether `gated_mlp` is the fastest way for these rows; arguments as there."""
    if linear_few_rows.supports(x, gate, batch=batch):
        return False
    by_dots = linear_many_rows_bf16.supports_gated_mlp(x, gate, up, down, activation)
    in_fp32 = len(x) >= MIN_ROWS or linear_many_rows_fp32.supports(x, gate, up, down)
    return by_dots or (in_fp32 and has_slow_16_bit_products(x))


def gated_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: Activation
) -> Generator[None, None, Tensor]:
    """down · (activation(gate · x) * (up · x)), where `supports_gated_mlp` is true; x `[m, hidden]`
    → `[m, hidden]` in x's dtype. Pauses about every 10 ms. One kernel knows only silu, by `F.silu`
    itself."""
    if linear_many_rows_bf16.supports_gated_mlp(x, gate, up, down, activation):
        return (yield from linear_many_rows_bf16.gated_mlp(x, gate, up, down))
    gated = activation((yield from _in_parts(x, gate)))
    yield None
    gated.mul_((yield from _in_parts(x, up)))
    yield None
    return (yield from _in_parts(gated, down))


def _in_parts(x: Tensor, weight: Tensor) -> Generator[None, None, Tensor]:
    """`linear` with pauses."""
    step = max(PAUSE // len(x) // TILE, 1) * TILE
    parts = [linear(x, weight[:step])]
    for a in range(step, len(weight), step):
        yield None
        parts.append(linear(x, weight[a : a + step]))
    return torch.cat(parts, dim=1)


def quantised_linear(x: Tensor, weight: Weight, *, batch: bool = False) -> Tensor:
    """`linear` with a weight that may be quantised. Few rows are multiplied with it as it is
    stored; otherwise a part at a time is dequantised, on a GPU, too, where quantising only saves
    memory."""
    if linear_few_rows.supports_product(x, weight, batch=batch):
        return linear_few_rows.product(x, weight)
    if linear_fp32.supports(x, weight):
        return linear_fp32.product(x, weight)
    out = x.new_empty(len(x), weight.shape[0])
    for part, tile in weight.tiles():
        out[:, part] = _part_linear(x, tile, batch=batch)
    return out


def _part_linear(x: Tensor, weight: Weight, *, batch: bool) -> Tensor:
    if linear_fp32.supports(x, weight):
        return linear_fp32.product(x, weight)
    if weight.bits == 8 and weight.scales is not None and x.dtype == torch.float32:
        # A row's scale is one of the result, which is smaller.
        out = torch.mm(x, weight.values.float().t()).mul_(weight.scales)
        return out if weight.bias is None else out.add_(weight.bias)
    return linear(x, weight.dequantised(x.dtype), weight.bias, batch=batch)


def quantised_gated_mlp(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    activation: Callable[[Tensor], Tensor],
    *,
    batch: bool = False,
) -> Generator[None, None, Tensor]:
    """down · (activation(gate · x) * (up · x)), with pauses between parts of the weights;
    `gate_up` has the rows of gate, then those of up."""
    width = gate_up.shape[0] // 2
    few = len(x) <= linear_fp32.FEW and linear_fp32.supports(x, gate_up)
    if few or linear_few_rows.supports_product(x, gate_up, batch=batch):
        gate, up = quantised_linear(x, gate_up, batch=batch).chunk(2, dim=-1)
        return quantised_linear(activation(gate).mul_(up), down, batch=batch)
    inner, out = x.new_empty(len(x), width), x.new_empty(len(x), down.shape[0])
    ups = gate_up.rows(slice(width, None))
    for part, gates in gate_up.rows(slice(width)).tiles():
        gated, upper = (_part_linear(x, tile, batch=batch) for tile in (gates, ups.rows(part)))
        inner[:, part] = activation(gated).mul_(upper)
        yield None
    for part, tile in down.tiles():
        out[:, part] = _part_linear(inner, tile, batch=batch)
        yield None
    return out


def _scratch(tile: Tensor) -> Tensor:
    return tile.new_empty(tile.numel(), dtype=torch.float32)


def _to_fp32(tile: Tensor, scratch: Tensor) -> Tensor:
    """Return the tile in fp32, in the scratch buffer: valid until the next call."""
    return scratch[: tile.numel()].view(tile.shape).copy_(tile)
