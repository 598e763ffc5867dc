"""Rows of a layer's KV cache on a CPU, bfloat16: placed, rotated (RoPE), overwritten and shifted.

torch passes over memory once per product, and gathers documents one after the other. The kernels
(`src/rotation.c`, `src/shift.c`) take one pass, and their results equal torch's bit by bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import native

HALF_LANES = 16  # the same constant as in the C source
# Elements: fewer are done (20 us) before other threads have woken up, where cores are shared.
MIN_PARALLEL = 1 << 18

StoredSegment = tuple[int, Tensor, Tensor]
"""First row of a segment in the cache; its k before RoPE and its v, `[tokens, heads, head_dim]`."""


def supports(x: Tensor, positions: Tensor, out: Tensor) -> bool:
    """Return whether the kernel is there and can `rotate` these tensors."""
    return (
        native.module() is not None
        and _are_positions(positions)
        and are_rows(x, out.shape)
        and are_rows(out, x.shape)
        and x.shape[2] % (2 * HALF_LANES) == 0
    )


def supports_placement(
    segments: Sequence[StoredSegment], k_cache: Tensor, v_cache: Tensor, positions: Tensor
) -> bool:
    """Return whether the kernel is there and can `place` these segments into this cache."""
    heads, n, d = k_cache.shape
    return (
        is_cache(k_cache, v_cache)
        and _are_positions(positions)
        and len(positions) >= n
        and all(
            are_rows(x, (len(k), heads, d)) and start + len(k) <= n
            for start, k, v in segments
            for x in (k, v)
        )
    )


def supports_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, rows: Tensor) -> bool:
    """Return whether the kernel is there and can write these rows, in ascending order."""
    heads, n, d = k_cache.shape
    shape = rows.shape[0], heads, d
    return (
        shape[0] > 0
        and is_cache(k_cache, v_cache)
        and are_rows(k, shape)
        and are_rows(v, shape)
        and are_places(rows, n)
    )


def is_cache(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Return whether there is a kernel that can write to this layer's cache."""
    d = k_cache.shape[2]
    return (
        native.module() is not None
        and d % (2 * HALF_LANES) == 0
        and all(are_rows(x, k_cache.shape) and x.stride(1) == d for x in (k_cache, v_cache))
    )


def are_rows(x: Tensor, shape: Sequence[int]) -> bool:
    """Return whether the kernel can read and write these rows, and they have this shape."""
    ours = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return ours and x.shape == tuple(shape) and x.stride(2) == 1


def are_places(rows: Tensor, n: int) -> bool:
    """Return whether the kernel can write to these rows of a cache of n, in ascending order."""
    return _are_positions(rows) and rows[0].item() >= 0 and rows[-1].item() < n


def _are_positions(positions: Tensor) -> bool:
    ours = positions.dtype == torch.int64 and positions.device.type == "cpu"
    return ours and positions.is_contiguous()


def rotate(x: Tensor, out: Tensor, *, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Write x `[rows, heads, head_dim]`, rotated to `positions` `[rows]`, to `out`; return
    `out`."""
    rows, heads, d = x.shape
    native.call(
        "rotation_rows",
        *(x, out, positions, cos, sin),
        *(rows, heads, d // 2, *x.stride()[:2], *out.stride()[:2]),
        torch.get_num_threads() if x.numel() >= MIN_PARALLEL else 1,
    )
    return out


def place(
    segments: Sequence[StoredSegment],
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> None:
    """Copy stored segments into a layer's cache `[kv_heads, n, head_dim]`: keys rotated to the
    positions of the cache's rows `[n]` int64, values as they are."""
    structs = array("q")
    for segment in segments:
        structs.extend(segment_struct(*segment))
    threads = torch.get_num_threads() if k_cache.numel() >= MIN_PARALLEL else 1
    layer = layer_struct(k_cache, v_cache)
    native.call(
        "rotation_place_segments", structs, len(segments), layer, positions, cos, sin, threads
    )


def write_with_queries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    rows: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """Overwrite rows `[m]` int64 of a layer's cache `[kv_heads, n, head_dim]` by k before RoPE and
    v, each `[m, kv_heads, head_dim]`; a key's position is the number of its row. Return the rows'
    queries, q `[m, heads, head_dim]`, rotated like the keys."""
    segment, layer = array("q", segment_struct(0, k, v)), layer_struct(k_cache, v_cache)
    out = q.new_empty(q.shape)
    native.call(
        "rotation_write_with_queries",
        *(segment, layer, rows, cos, sin, q, out),
        *(q.shape[1], q.stride(0), q.stride(1)),
        torch.get_num_threads() if q.numel() >= MIN_PARALLEL else 1,
    )
    return out


def segment_struct(start: int, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Return the fields of the C `struct segment`."""
    return (k.data_ptr(), v.data_ptr(), start, k.shape[0], *k.stride()[:2], *v.stride()[:2])


def layer_struct(k_cache: Tensor, v_cache: Tensor) -> array[int]:
    """Return the fields of the C `struct layer`."""
    heads, _, d = k_cache.shape
    sizes = (heads, d // 2, k_cache.stride(0), v_cache.stride(0))
    return array("q", (k_cache.data_ptr(), v_cache.data_ptr(), *sizes))


MAX_SHIFTED_WIDTH = 512  # the same constant as in the C source

KV = tuple[Tensor, Tensor]
"""Keys before RoPE and values, each `[tokens, kv_heads, head_dim]`."""


def supports_shift(stored: Sequence[KV], fresh: KV, cache: KV) -> bool:
    """Return whether the kernels are there and take such tensors; cache `[kv_heads, n,
    head_dim]`."""
    heads, _, d = cache[0].shape
    return (
        is_cache(*cache)
        and d <= MAX_SHIFTED_WIDTH
        and all(are_rows(x, (x.shape[0], heads, d)) for kv in (*stored, fresh) for x in kv)
    )


def shift_gaps(
    stored: Sequence[KV], fresh: KV, *, firsts: Sequence[int], tokens: Tensor, places: Tensor
) -> Tensor:
    """Return fresh minus stored keys and values `[2, p, kv_heads * head_dim]` fp32 of tokens by
    their numbers in their documents, which are at `places` among the computed rows; `firsts`
    says with which each document begins."""
    _, heads, d = fresh[0].shape
    out = torch.empty(2, tokens.shape[0], heads * d)
    documents = array("q")
    for first, (k, v) in zip(firsts, stored, strict=True):
        documents.extend(segment_struct(first, k, v))
    native.call(
        "shift_gaps",
        *(documents, len(stored), array("q", segment_struct(0, *fresh))),
        *(tokens, places, out, tokens.shape[0], heads, d),
    )
    return out


def shift_rows(
    keys: Tensor | None,
    values: Tensor | None,
    cache: KV,
    *,
    document_of: Tensor,
    weights: Tensor,
    first: int,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> None:
    """Shift rows of a layer's cache from `first` on: by their document's `keys` before RoPE and
    `values` `[documents, kv_heads * head_dim]`, None: they stay, times their weight bfloat16."""
    heads, _, d = cache[0].shape
    count = positions.shape[0]
    native.call(
        "shift_rows",
        *(keys, values, document_of, weights, positions, first, count),
        *(layer_struct(*cache), cos, sin),
        torch.get_num_threads() if count * heads * d >= MIN_PARALLEL else 1,
    )
