"""RMS norms on a GPU, in Triton, of a hidden state or of its sum with what is added, in one launch.
The sum is rounded as torch rounds it, and the norm is that of the rounded sum; compared with torch
before the first use on a device (`triton_support`)."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.gpu import triton_support
from service.worker.kernels.gpu.triton_support import tl

MAX_WIDTH = 1 << 14
# Allowed difference in the check before the first use, of values up to 4: the sum of squares is
# added up in another order, which may decide a rounding.
TOLERANCE = 2**-6


def supports(x: Tensor) -> bool:
    """Return whether the kernel takes hidden states `[rows, width]` like x."""
    on_gpu = _kernel is not None and x.device.type == "cuda"
    fits = x.dtype in triton_support.HALF_PRECISION and x.is_contiguous() and x.ndim == 2
    return on_gpu and fits and x.shape[1] <= MAX_WIDTH and is_verified(x.device)


@cache
def is_verified(device: torch.device) -> bool:
    """Return whether the kernel compiles on this device and gives what torch gives."""
    return triton_support.matches_torch("sum and norm", lambda: _compared(device), TOLERANCE)


def _compared(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    x, added = torch.randn(2, 5, 1500, generator=random, device=device).bfloat16()
    weight = torch.rand(1500, generator=random, device=device).bfloat16()
    total, ours = add_and_normalise(x, added, weight, 1e-5)
    theirs = [F.rms_norm(of, weight.shape, weight, 1e-5) for of in (x + added, x)]
    alone = normalise(x, weight, 1e-5)
    return torch.stack([total, ours, alone]), torch.stack([x + added, *theirs])


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
    _kernel[(rows,)](
        x, x if added is None else added, weight, total, normed, width, epsilon,
        width if added is None else added.stride(0), ADDED=added is not None,
        WIDTH=1 << (width - 1).bit_length(), num_warps=8 if width > 2048 else 4,
    )  # fmt: skip


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


_kernel = triton_support.jit(_add_and_normalise)
