"""Rotary embedding of bfloat16 rows on a CPU, straight to where they are needed.

torch takes a pass over memory for every product, and gathers cosines and sines before; the kernel
in `rotation.c` takes one pass, with the same result to the bit. Knows no model.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.library import built

HALF_LANES = 16  # as in the kernel
# Fewer values are turned sooner (20 us) than threads are woken where cores are shared.
MIN_PARALLEL = 1 << 18

Stored = tuple[int, Tensor, Tensor]
"""A segment's first row in the cache, its k before RoPE and v `[tokens, heads, d]`."""


class Kernel:
    """The built library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._rotate = library.rotation_rows
        self._rotate.argtypes = [*[ctypes.c_void_p] * 5, *[ctypes.c_ssize_t] * 7, ctypes.c_int]
        self._rotate.restype = None
        self._place = library.rotation_place
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._place.argtypes = [pointer, size, *[pointer] * 5, *[size] * 4, ctypes.c_int]
        self._place.restype = None

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

    def place(
        self,
        segments: Sequence[Stored],
        k_all: Tensor,
        v_all: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        """Stored segments into a layer's cache `[heads, n, d]`: keys turned to `positions` `[n]`
        by the tables, values as they are."""
        numbers = array("q")
        for start, k, v in segments:
            sources = k.data_ptr(), v.data_ptr()
            numbers.extend((*sources, start, len(k), *k.stride()[:2], *v.stride()[:2]))
        heads, _, d = k_all.shape
        self._place(
            numbers.buffer_info()[0],
            len(segments),
            k_all.data_ptr(),
            v_all.data_ptr(),
            positions.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            heads,
            d // 2,
            k_all.stride(0),
            v_all.stride(0),
            torch.get_num_threads() if k_all.numel() >= MIN_PARALLEL else 1,
        )


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is built and this CPU can run it."""
    return built("rotation", Kernel)


def served(x: Tensor, positions: Tensor, out: Tensor) -> Kernel | None:
    """The kernel, if it takes these."""
    counted = positions.dtype == torch.int64 and positions.is_contiguous()
    return kernel() if counted and _fit(x, out) else None


def places(
    segments: Sequence[Stored], k_all: Tensor, v_all: Tensor, positions: Tensor
) -> Kernel | None:
    """The kernel, if it takes these into that cache."""
    heads, n, d = k_all.shape
    counted = positions.dtype == torch.int64 and positions.is_contiguous()
    counted = counted and len(positions) >= n and v_all.shape == k_all.shape
    ours = all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in (k_all, v_all))
    in_rows = d % (2 * HALF_LANES) == 0 and all(x.stride()[1:] == (d, 1) for x in (k_all, v_all))
    if not (counted and ours and in_rows):
        return None
    fit = all(
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape == (len(k), heads, d)
        and x.stride(2) == 1
        and start + len(k) <= n
        for start, k, v in segments
        for x in (k, v)
    )
    return kernel() if fit else None


def _fit(x: Tensor, out: Tensor) -> bool:
    fits = x.dtype == out.dtype == torch.bfloat16 and x.device.type == out.device.type == "cpu"
    whole = x.shape == out.shape and x.shape[2] % (2 * HALF_LANES) == 0
    return fits and whole and x.stride(2) == out.stride(2) == 1
