"""Rotary embedding of bfloat16 rows on a CPU, straight to where they are needed.

torch takes a pass over memory for every product, and gathers cosines and sines before; the kernel
in `rotation.c` takes one pass, with the same result to the bit. Knows no model.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.library import built

HALF_LANES = 16  # as in the kernel
# Fewer values are turned sooner (20 us) than threads are woken where cores are shared.
MIN_PARALLEL = 1 << 18


class Kernel:
    """The built library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._rotate = library.rotation_rows
        self._rotate.argtypes = [*[ctypes.c_void_p] * 5, *[ctypes.c_ssize_t] * 7, ctypes.c_int]
        self._rotate.restype = None
        self._copy = library.rotation_copy
        self._copy.argtypes = [*[ctypes.c_void_p] * 2, *[ctypes.c_ssize_t] * 7]
        self._copy.restype = None

    def rotate(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
        """x `[rows, heads, d]` turned to `positions` `[rows]` by the tables cos and sin
        `[positions, d / 2]`, into `out`."""
        rows, heads, d = x.shape
        self._rotate(
            x.data_ptr(),
            out.data_ptr(),
            positions.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            rows,
            heads,
            d // 2,
            *x.stride()[:2],
            *out.stride()[:2],
            torch.get_num_threads() if x.numel() >= MIN_PARALLEL else 1,
        )
        return out

    def copy(self, x: Tensor, out: Tensor) -> None:
        """x `[rows, heads, d]` into `out`."""
        self._copy(x.data_ptr(), out.data_ptr(), *x.shape, *x.stride()[:2], *out.stride()[:2])


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is built and this CPU can run it."""
    return built("rotation", Kernel)


def served(x: Tensor, positions: Tensor, out: Tensor) -> Kernel | None:
    """The kernel, if it takes these."""
    counted = positions.dtype == torch.int64 and positions.is_contiguous()
    return kernel() if counted and _fit(x, out) else None


def copy(x: Tensor, out: Tensor) -> None:
    """x `[rows, heads, d]` into `out`: values go where keys go, without being turned."""
    found = kernel() if _fit(x, out) else None
    if found is None:
        out.copy_(x)
    else:
        found.copy(x, out)


def _fit(x: Tensor, out: Tensor) -> bool:
    fits = x.dtype == out.dtype == torch.bfloat16 and x.device.type == out.device.type == "cpu"
    whole = x.shape == out.shape and x.shape[2] % (2 * HALF_LANES) == 0
    return fits and whole and x.stride(2) == out.stride(2) == 1
