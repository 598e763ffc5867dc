"""What is computed row by row between a layer's products, on a GPU, in Triton, in one launch each:
the RMS norm of a hidden state or of its sum with what is added, and silu(gate) · up of a gated MLP.

Rounded where torch rounds; compared with torch before the first use on a device
(`triton_support`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch_gpu import triton_support
from kvstitch_gpu.triton_support import tl

MAX_WIDTH = 1 << 14  # of a hidden state
COLUMNS = 1024  # of a program that multiplies
# Allowed difference in the checks before the first use, of values up to 4: the sum of squares is
# added up in another order, and exp of the two libraries may differ in the last bit of fp32, each
# of which may decide a rounding.
TOLERANCE = 2**-6


def can_normalise(x: Tensor) -> bool:
    """Return whether the kernel takes hidden states `[rows, width]` like x."""
    fits = _takes(_normalise, x) and x.ndim == 2 and x.shape[1] <= MAX_WIDTH
    return fits and norm_is_verified(x.device)


def can_multiply(gate_up: Tensor) -> bool:
    """Return whether the kernel takes the product `[rows, 2 * intermediate]`."""
    return _takes(_multiply, gate_up) and product_is_verified(gate_up.device)


def _takes(kernel: object, x: Tensor) -> bool:
    fits = x.dtype in triton_support.HALF_PRECISION and x.is_contiguous()
    return kernel is not None and x.device.type == "cuda" and fits


@triton_support.verified("sum and norm", TOLERANCE)
def norm_is_verified(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    x, added = torch.randn(2, 5, 1500, generator=random, device=device).bfloat16()
    weight = torch.rand(1500, generator=random, device=device).bfloat16()
    total, ours = add_and_normalise(x, added, weight, 1e-5)
    theirs = [F.rms_norm(of, weight.shape, weight, 1e-5) for of in (x + added, x)]
    alone = normalise(x, weight, 1e-5)
    return torch.stack([total, ours, alone]), torch.stack([x + added, *theirs])


@triton_support.verified("silu and product", TOLERANCE)
def product_is_verified(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    x = torch.randn(5, 2 * 1500, generator=random, device=device).bfloat16()
    gate, up = x.chunk(2, -1)
    return silu_product(x), F.silu(gate).mul_(up)


def add_and_normalise(
    x: Tensor, added: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return x + added, and its RMS norm times `weight` `[width]`; both `[rows, width]`."""
    total, normed = torch.empty_like(x), torch.empty_like(x)
    _launch(x, added, weight, total, normed, epsilon)
    return total, normed


def normalise(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return the RMS norm of x `[rows, width]` times `weight` `[width]`."""
    normed = torch.empty_like(x)
    _launch(x, None, weight, normed, normed, epsilon)
    return normed


def _launch(
    x: Tensor, added: Tensor | None, weight: Tensor, total: Tensor, normed: Tensor, epsilon: float
) -> None:
    rows, width = x.shape
    _normalise[(rows,)](
        x, x if added is None else added, weight, total, normed, width, epsilon,
        width if added is None else added.stride(0), ADDED=added is not None,
        WIDTH=1 << (width - 1).bit_length(), num_warps=8 if width > 2048 else 4,
    )  # fmt: skip


def silu_product(gate_up: Tensor) -> Tensor:
    """Return silu of the first half of each row times the second: `[rows, 2 * i]` → `[rows, i]`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    _multiply[(rows, -(-width // COLUMNS))](gate_up, out, width, COLUMNS=COLUMNS)
    return out


def _add_and_normalise(
    x: tl.tensor, added: tl.tensor, weight: tl.tensor, total: tl.tensor, normed: tl.tensor,
    width: tl.tensor, epsilon: tl.tensor, added_row: tl.tensor, ADDED: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        second = tl.load(added + row * added_row + column, mask=inside, other=0.0).to(tl.float32)
        rounded = (value + second).to(total.dtype.element_ty)
        tl.store(total + row * width + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + epsilon)
    by = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        normed + row * width + column, (value * inverse * by).to(normed.dtype.element_ty),
        mask=inside,
    )  # fmt: skip


def _product(x: tl.tensor, out: tl.tensor, width: tl.tensor, COLUMNS: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + column, (silu * up).to(out.dtype.element_ty), mask=inside)


_normalise = triton_support.jit(_add_and_normalise)
_multiply = triton_support.jit(_product)
