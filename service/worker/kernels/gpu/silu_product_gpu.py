"""The inside of a gated MLP on a GPU, silu(gate) · up, in Triton, in one launch. Rounded where
torch rounds, after silu and after the product; compared with torch before the first use on a device
(`triton_support`)."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.gpu import triton_support
from service.worker.kernels.gpu.triton_support import tl

COLUMNS = 1024
# Allowed difference in the check before the first use, of values near 1: exp of the two libraries
# may differ in the last bit of fp32, which may decide a rounding.
TOLERANCE = 2**-6


def supports(gate_up: Tensor) -> bool:
    """Return whether the kernel takes the product `[rows, 2 * intermediate]`."""
    on_gpu = _kernel is not None and gate_up.device.type == "cuda"
    fits = gate_up.dtype in triton_support.HALF_PRECISION and gate_up.is_contiguous()
    return on_gpu and fits and is_verified(gate_up.device)


@cache
def is_verified(device: torch.device) -> bool:
    """Return whether the kernel compiles on this device and gives what torch gives."""
    return triton_support.matches_torch("silu and product", lambda: _compared(device), TOLERANCE)


def _compared(device: torch.device) -> tuple[Tensor, Tensor]:
    random = torch.Generator(device=device).manual_seed(0)
    x = torch.randn(5, 2 * 1500, generator=random, device=device).bfloat16()
    gate, up = x.chunk(2, -1)
    return silu_product(x), F.silu(gate).mul_(up)


def silu_product(gate_up: Tensor) -> Tensor:
    """Return silu of the first half of each row times the second: `[rows, 2 * i]` → `[rows, i]`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    _kernel[(rows, -(-width // COLUMNS))](gate_up, out, width, COLUMNS=COLUMNS)
    return out


def _product(x: tl.tensor, out: tl.tensor, width: tl.tensor, COLUMNS: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + column, (silu * up).to(out.dtype.element_ty), mask=inside)


_kernel = triton_support.jit(_product)
