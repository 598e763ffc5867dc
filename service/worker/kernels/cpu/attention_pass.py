"""A few rows of a prompt through several layers in one call, on a CPU: the question's first pass.

Of 16 rows, Python takes as long to call a layer's operations as they take. The kernel
(`src/attention_pass.c`) calls the same ones, with the same results.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from service.worker.kernels.cpu import native, rotation
from service.worker.kernels.cpu.layer_parts import LayerParts
from service.worker.kernels.cpu.prefill_attention import score_tiles
from service.worker.kernels.cpu.rotation import StoredSegment, layer_struct, segment_struct

# Multiplications that take as long as placing a key's value and a value's.
PLACED = 64


class PassLayer(NamedTuple):
    """A layer of a pass."""

    parts: LayerParts
    k_cache: Tensor  # of the prompt `[kv_heads, n, head_dim]`; `v_cache` is like it
    v_cache: Tensor
    cos: Tensor  # table `[max_positions, head_dim / 2]` fp32; `sin` is like it
    sin: Tensor
    segments: Sequence[StoredSegment]  # what is placed in the cache first
    counts: bool  # whether its attention is scored


def supports(
    parts: LayerParts, x: Tensor, rows: Tensor, row_weights: Tensor, cache: tuple[Tensor, Tensor]
) -> bool:
    """Return whether the kernel takes rows x `[m, hidden]`; the other arguments as of `run`."""
    return (
        len(rows) > 1  # one row attends by another kernel
        and row_weights.shape == rows.shape
        and rotation.are_places(rows, cache[0].shape[1])
        and rotation.is_cache(*cache)
        and parts.takes(x, batch=False)
    )


def cost(parts: LayerParts, rows: int, n: int) -> int:
    """Return the work of a layer for so many rows in a prompt of n tokens, in multiplications."""
    _, heads, kv_heads, d = parts.sizes
    return rows * (parts.cost + 2 * heads * d * n) + PLACED * kv_heads * d * n


def run(
    layers: Sequence[PassLayer],
    x: Tensor,
    rows: Tensor,
    *,
    row_weights: Tensor,
    positions: Tensor,
    scale: float,
    ends: bool,
) -> Tensor:
    """Compute rows x `[m, hidden]`, which are overwritten, through layers that take them; return
    the scores `[layers that count, n]` fp32: softmax weights times the row's weight, summed over
    heads and rows. If it `ends`, nothing reads the last layer's output, which is not computed."""
    parts, m, (kv_heads, n, _) = layers[0].parts, len(x), layers[0].k_cache.shape
    counting = sum(layer.counts for layer in layers)
    scores = torch.zeros(counting, kv_heads * score_tiles(m, parts.heads // kv_heads), n)
    left = iter(scores)
    structs, held = array("q"), []
    for layer in layers:
        segments = array("q")
        for segment in layer.segments:
            segments.extend(segment_struct(*segment))
        held.append(segments)  # until the call has read them
        structs.extend((layer.parts.address, layer.cos.data_ptr(), layer.sin.data_ptr()))
        structs.extend(layer_struct(layer.k_cache, layer.v_cache))
        structs.extend((segments.buffer_info()[0], len(layer.segments)))
        structs.append(next(left).data_ptr() if layer.counts else 0)
    sizes = array("q", (len(layers), ends, *parts.sizes, parts.inner, m, n))
    native.call(
        "attention_pass",
        *(sizes, structs, x, rows, rows + 1, positions, row_weights.float().contiguous()),
        *(parts.eps, scale),
        *(parts.few(m, batch=False), native.has_bf16_dot(), torch.get_num_threads()),
    )
    return scores[:, 0]
