"""RMSNorm of bfloat16 rows on a CPU in one pass over memory; also x + y and its norm together.

torch passes over memory once per operation, mostly in fp32. The kernel (`src/rms_norm.c`) rounds
where transformers' modules do. Only the order in which it adds up the squares differs, so a result
is at most one rounding away from theirs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from service.worker.kernels.cpu import native

HALF_LANES = 16  # the same constant as in the C source
# Elements: fewer are done (20 us) before other threads have woken up, where cores are shared.
MIN_PARALLEL = 1 << 17


class Kernel:
    """The compiled functions."""

    def __init__(self, module: Any) -> None:
        self._rows = module.rms_norm_rows
        self._sums = module.rms_norm_of_sums

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x `[m, width]` or `[m, heads, width]`, divided by its root mean square, times weight."""
        out = x.new_empty(x.shape)
        heads, x_head = (1, 0) if x.dim() == 2 else (x.shape[1], x.stride(1))
        self._rows(
            x.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            len(x),
            heads,
            len(weight),
            x.stride(0),
            x_head,
            eps,
            _threads(x),
        )
        return out

    def add_and_norm(
        self, x: Tensor, y: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """x + y `[m, width]`, and the norm of the sum."""
        added, out = x.new_empty(x.shape), x.new_empty(x.shape)
        self._sums(
            x.data_ptr(),
            y.data_ptr(),
            weight.data_ptr(),
            added.data_ptr(),
            out.data_ptr(),
            *x.shape,
            x.stride(0),
            y.stride(0),
            eps,
            _threads(x),
        )
        return added, out


def _threads(x: Tensor) -> int:
    return torch.get_num_threads() if x.numel() >= MIN_PARALLEL else 1


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is compiled and this CPU can run it."""
    found = native.module()
    return Kernel(found) if found is not None else None


def kernel_for(weight: Tensor, x: Tensor, y: Tensor | None = None) -> Kernel | None:
    """The kernel, if it takes these tensors.

    Args:
        weight: `[width]`.
        x: `[m, width]` or `[m, heads, width]`.
        y: what is to be added to x first; both are `[m, width]` then.
    """
    fits = x.dtype == weight.dtype == torch.bfloat16 and x.device.type == "cpu"
    whole = weight.shape == x.shape[-1:] and len(weight) % HALF_LANES == 0
    in_rows = x.dim() in (2, 3) and x.stride(-1) == weight.stride(0) == 1
    if y is not None:
        same = x.dim() == 2 and y.shape == x.shape and y.dtype == x.dtype and y.device == x.device
        in_rows = in_rows and same and y.stride(1) == 1
    return kernel() if fits and whole and in_rows else None
