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

from service.worker.kernels.cpu.shared_library import load_kernel

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
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._place = library.rotation_place_segments
        self._place.argtypes = [pointer, size, *[pointer] * 4, ctypes.c_int]
        self._place.restype = None
        self._write = library.rotation_write_rows
        self._write.argtypes = [pointer] * 5
        self._write.restype = None

    def rotate(
        self, x: Tensor, out: Tensor, *, positions: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
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
        *,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        """Stored segments into a layer's cache `[heads, n, d]`: keys turned to `positions` `[n]`
        by the tables, values as they are."""
        numbers, layer = array("q"), _layer(k_all, v_all)
        for segment in segments:
            numbers.extend(_numbers_of(*segment))
        self._place(
            numbers.buffer_info()[0],
            len(segments),
            layer.buffer_info()[0],
            positions.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            torch.get_num_threads() if k_all.numel() >= MIN_PARALLEL else 1,
        )

    def write(
        self,
        k: Tensor,
        v: Tensor,
        k_all: Tensor,
        v_all: Tensor,
        *,
        rows: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        """k before RoPE and v `[m, heads, d]` over `rows` `[m]` of a layer's cache
        `[heads, n, d]`: keys turned to the position that is their row."""
        numbers, layer = array("q", _numbers_of(0, k, v)), _layer(k_all, v_all)
        self._write(
            numbers.buffer_info()[0],
            layer.buffer_info()[0],
            rows.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
        )


def _numbers_of(start: int, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """The kernel's `struct segment`."""
    return (k.data_ptr(), v.data_ptr(), start, len(k), *k.stride()[:2], *v.stride()[:2])


def _layer(k_all: Tensor, v_all: Tensor) -> array[int]:
    """The kernel's `struct layer`."""
    heads, _, d = k_all.shape
    sizes = (heads, d // 2, k_all.stride(0), v_all.stride(0))
    return array("q", (k_all.data_ptr(), v_all.data_ptr(), *sizes))


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is built and this CPU can run it."""
    return load_kernel("rotation", Kernel)


def kernel_for(x: Tensor, positions: Tensor, out: Tensor) -> Kernel | None:
    """The kernel, if it takes these."""
    return kernel() if _counts(positions) and _fit(x, out) else None


def placement_kernel_for(
    segments: Sequence[Stored], k_all: Tensor, v_all: Tensor, positions: Tensor
) -> Kernel | None:
    """The kernel, if it takes these into that cache."""
    n = k_all.shape[1]
    if not _takes(k_all, v_all) or not _counts(positions) or len(positions) < n:
        return None
    fit = all(
        _stands(x, (len(k), *k_all.shape[::2])) and start + len(k) <= n
        for start, k, v in segments
        for x in (k, v)
    )
    return kernel() if fit else None


def row_write_kernel_for(
    k: Tensor, v: Tensor, k_all: Tensor, v_all: Tensor, rows: Tensor
) -> Kernel | None:
    """The kernel, if it takes rows, in ascending order, into that cache."""
    m, n = len(rows), k_all.shape[1]
    if not m or not _takes(k_all, v_all) or not _counts(rows):
        return None
    fit = all(_stands(x, (m, *k_all.shape[::2])) for x in (k, v))
    inside = fit and rows[0].item() >= 0 and rows[-1].item() < n
    return kernel() if inside else None


def _takes(k_all: Tensor, v_all: Tensor) -> bool:
    """Whether this is a layer's cache that the kernel can write."""
    d = k_all.shape[2]
    ours = all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in (k_all, v_all))
    in_rows = d % (2 * HALF_LANES) == 0 and all(x.stride()[1:] == (d, 1) for x in (k_all, v_all))
    return ours and in_rows and v_all.shape == k_all.shape


def _stands(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether these are rows that the kernel can read."""
    ours = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return ours and x.shape == shape and x.stride(2) == 1


def _counts(positions: Tensor) -> bool:
    return positions.dtype == torch.int64 and positions.is_contiguous()


def _fit(x: Tensor, out: Tensor) -> bool:
    fits = x.dtype == out.dtype == torch.bfloat16 and x.device.type == out.device.type == "cpu"
    whole = x.shape == out.shape and x.shape[2] % (2 * HALF_LANES) == 0
    return fits and whole and x.stride(2) == out.stride(2) == 1
