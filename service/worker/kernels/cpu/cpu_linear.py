"""Products with 16-bit weights on a CPU, whichever way is fastest for their rows.

What the kernels `linear_few_rows`, `linear_many_rows_bf16` and `linear_many_rows_fp32` take goes to them. What is left is
torch's; but many a CPU multiplies bfloat16 at about half the rate of fp32 (a Xeon without tile
units: 80 against 140 GFLOP/s of one core). There weights are widened into a scratch tile that stays
in the L2 cache, multiplied in fp32, and only the result is rounded; nothing else is kept. Few rows
are bound by reading the weights, which 16 bits halve: they stay with the stock product.
Knows no model and no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import linear_few_rows, linear_many_rows_bf16, linear_many_rows_fp32

# From here on the faster product pays for widening the weights (measured at 32 and 64 rows of one
# shape; 48 lies between).
MIN_ROWS = 48
# From here to MIN_ROWS the 16-bit product takes the weights as its left side: a fifth faster at 32
# rows of one shape; 24 is a guess between the 8 and 32 that were tried.
MIN_ROWS_LEFT = 24
# Weight rows per tile: 512 of 896 are 1.8 MB in fp32.
TILE = 512
# Products of rows and weight rows between two pauses: about 10 ms.
PAUSE = 1 << 19


@cache
def _has_slow_bf16_products() -> bool:
    return not torch.cpu._is_amx_tile_supported() and linear_many_rows_bf16.kernel() is None


def has_slow_16_bit_products(x: Tensor) -> bool:
    """x is in 16 bits on a CPU that multiplies them slower than fp32."""
    if x.device.type != "cpu":
        return False
    if x.dtype == torch.float16:  # has dot products of its own on CPUs with tile units alone
        return not torch.cpu._is_amx_tile_supported()
    return x.dtype == torch.bfloat16 and _has_slow_bf16_products()


def is_faster_in_fp32(x: Tensor) -> bool:
    """Whether a product with the rows x `[m, in]` is faster in fp32."""
    return len(x) >= MIN_ROWS and has_slow_16_bit_products(x)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, batch: bool = False) -> Tensor:
    """x `[m, in]`, weight `[out, in]` → `[m, out]` in x's dtype, whichever way is fastest. batch:
    the rows are of different sequences."""
    if linear_few_rows.supports(x, weight, batch=batch):
        return linear_few_rows.linear(x, weight, bias)
    if linear_many_rows_bf16.supports(x, weight):
        return linear_many_rows_bf16.linear(x, weight, bias)
    if has_slow_16_bit_products(x) and linear_many_rows_fp32.supports(x, weight):
        return linear_many_rows_fp32.linear(x, weight, bias)
    if len(x) < MIN_ROWS_LEFT or not has_slow_16_bit_products(x):
        return F.linear(x, weight, bias)
    if len(x) < MIN_ROWS:
        out = torch.mm(weight, x.t()).t().contiguous()
        return out if bias is None else out.add_(bias)
    rows, out = x.float(), x.new_empty((len(x), len(weight)), dtype=torch.float32)
    scratch = _scratch(weight[:TILE])
    for a in range(0, len(weight), TILE):
        tile = _widened(weight[a : a + TILE], scratch)
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
    """Whether `gated_mlp` is the fastest way for these rows."""
    if linear_few_rows.supports(x, gate, batch=batch):
        return False
    if linear_many_rows_bf16.supports_gated_mlp(x, gate, up, down, activation) or is_faster_in_fp32(
        x
    ):
        return True
    return has_slow_16_bit_products(x) and linear_many_rows_fp32.supports(x, gate, up, down)


def gated_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: Activation
) -> Generator[None, None, Tensor]:
    """down · (activation(gate · x) * (up · x)) of x `[m, hidden]`, in x's dtype, where `serves_mlp`
    says so.

    Intermediate rows live a tile at a time: `[m, TILE]` instead of `[m, intermediate]`. Pauses
    between tiles of the weights: so all rows go through a tile that is widened once.
    """
    if linear_many_rows_bf16.supports_gated_mlp(x, gate, up, down, activation):
        return (yield from linear_many_rows_bf16.gated_mlp(x, gate, up, down))
    if linear_many_rows_fp32.supports(x, gate, up, down):
        return (yield from linear_many_rows_fp32.gated_mlp(x, gate, up, down, activation))
    rows, out = x.float(), x.new_zeros((len(x), len(down)), dtype=torch.float32)
    scratch = _scratch(gate[:TILE])
    since = 0
    for a in range(0, len(gate), TILE):
        if since >= PAUSE:
            since = 0
            yield None
        since += 3 * len(x) * TILE
        tile = slice(a, a + TILE)
        inner = activation(rows @ _widened(gate[tile], scratch).t())
        inner.mul_(rows @ _widened(up[tile], scratch).t())
        out.addmm_(inner, _widened(down[:, tile], scratch).t())
    return out.to(x.dtype)


def _scratch(tile: Tensor) -> Tensor:
    return tile.new_empty(tile.numel(), dtype=torch.float32)


def _widened(tile: Tensor, scratch: Tensor) -> Tensor:
    """The tile in fp32, in the scratch's memory: valid until the next one is asked for."""
    return scratch[: tile.numel()].view(tile.shape).copy_(tile)
