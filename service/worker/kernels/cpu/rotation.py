"""Rotary embedding (RoPE) of bfloat16 rows on a CPU, written straight to where they are needed.

torch gathers cosines and sines first and passes over memory once per product. The kernel
(`src/rotation.c`) takes one pass, and its results equal torch's bit by bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from service.worker.kernels.cpu import native

HALF_LANES = 16  # the same constant as in the C source
# Elements: fewer are done (20 us) before other threads have woken up, where cores are shared.
MIN_PARALLEL = 1 << 18

StoredSegment = tuple[int, Tensor, Tensor]
"""First row of a segment in the cache; its k before RoPE and its v, `[tokens, heads, head_dim]`."""


class Kernel:
    """The compiled functions."""

    def __init__(self, module: Any) -> None:
        self._rotate = module.rotation_rows
        self._place = module.rotation_place_segments
        self._write = module.rotation_write_rows

    def rotate(
        self, x: Tensor, out: Tensor, *, positions: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """x rotated to `positions`, written to `out`.

        Args:
            x: `[rows, heads, head_dim]`.
            out: `[rows, heads, head_dim]`.
            positions: `[rows]` int64.
            cos: table `[max_positions, head_dim / 2]` fp32.
            sin: table like `cos`.

        Returns:
            `out`.
        """
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
        segments: Sequence[StoredSegment],
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        """Copy stored segments into a layer's cache: keys rotated, values as they are.

        Args:
            segments: what to copy, and where to.
            k_cache: `[kv_heads, n, head_dim]`.
            v_cache: `[kv_heads, n, head_dim]`.
            positions: position of every row of the cache, `[n]` int64.
            cos: table `[max_positions, head_dim / 2]` fp32.
            sin: table like `cos`.
        """
        segment_structs, layer_struct = array("q"), _layer_struct(k_cache, v_cache)
        for segment in segments:
            segment_structs.extend(_segment_struct(*segment))
        self._place(
            segment_structs.buffer_info()[0],
            len(segments),
            layer_struct.buffer_info()[0],
            positions.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            torch.get_num_threads() if k_cache.numel() >= MIN_PARALLEL else 1,
        )

    def write(
        self,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        rows: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        """Overwrite rows of a layer's cache; a key's position is the number of its row.

        Args:
            k: `[m, kv_heads, head_dim]`, before RoPE.
            v: `[m, kv_heads, head_dim]`.
            k_cache: `[kv_heads, n, head_dim]`.
            v_cache: `[kv_heads, n, head_dim]`.
            rows: which to overwrite, `[m]` int64.
            cos: table `[max_positions, head_dim / 2]` fp32.
            sin: table like `cos`.
        """
        segment_structs, layer_struct = (
            array("q", _segment_struct(0, k, v)),
            _layer_struct(k_cache, v_cache),
        )
        self._write(
            segment_structs.buffer_info()[0],
            layer_struct.buffer_info()[0],
            rows.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
        )


def _segment_struct(start: int, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Return the fields of the C `struct segment`."""
    return (k.data_ptr(), v.data_ptr(), start, len(k), *k.stride()[:2], *v.stride()[:2])


def _layer_struct(k_cache: Tensor, v_cache: Tensor) -> array[int]:
    """Return the fields of the C `struct layer`."""
    heads, _, d = k_cache.shape
    sizes = (heads, d // 2, k_cache.stride(0), v_cache.stride(0))
    return array("q", (k_cache.data_ptr(), v_cache.data_ptr(), *sizes))


@cache
def kernel() -> Kernel | None:
    """Return the kernel, if it is compiled and this CPU can run it."""
    found = native.module()
    return Kernel(found) if found is not None else None


def kernel_for(x: Tensor, positions: Tensor, out: Tensor) -> Kernel | None:
    """Return the kernel, if it can `rotate` these tensors."""
    return kernel() if _are_positions(positions) and _can_rotate(x, out) else None


def placement_kernel_for(
    segments: Sequence[StoredSegment], k_cache: Tensor, v_cache: Tensor, positions: Tensor
) -> Kernel | None:
    """Return the kernel, if it can `place` these segments into this cache."""
    n = k_cache.shape[1]
    if (
        not _is_writable_cache(k_cache, v_cache)
        or not _are_positions(positions)
        or len(positions) < n
    ):
        return None
    fit = all(
        _is_readable(x, (len(k), *k_cache.shape[::2])) and start + len(k) <= n
        for start, k, v in segments
        for x in (k, v)
    )
    return kernel() if fit else None


def row_write_kernel_for(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, rows: Tensor
) -> Kernel | None:
    """Return the kernel, if it can `write` these rows, in ascending order, to this cache."""
    m, n = len(rows), k_cache.shape[1]
    if not m or not _is_writable_cache(k_cache, v_cache) or not _are_positions(rows):
        return None
    fit = all(_is_readable(x, (m, *k_cache.shape[::2])) for x in (k, v))
    inside = fit and rows[0].item() >= 0 and rows[-1].item() < n
    return kernel() if inside else None


def _is_writable_cache(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Return whether the kernel can write to this layer's cache."""
    d = k_cache.shape[2]
    ours = all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in (k_cache, v_cache))
    in_rows = d % (2 * HALF_LANES) == 0 and all(
        x.stride()[1:] == (d, 1) for x in (k_cache, v_cache)
    )
    return ours and in_rows and v_cache.shape == k_cache.shape


def _is_readable(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether the kernel can read these rows."""
    ours = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return ours and x.shape == shape and x.stride(2) == 1


def _are_positions(positions: Tensor) -> bool:
    return positions.dtype == torch.int64 and positions.is_contiguous()


def _can_rotate(x: Tensor, out: Tensor) -> bool:
    fits = x.dtype == out.dtype == torch.bfloat16 and x.device.type == out.device.type == "cpu"
    whole = x.shape == out.shape and x.shape[2] % (2 * HALF_LANES) == 0
    return fits and whole and x.stride(2) == out.stride(2) == 1
