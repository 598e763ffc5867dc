"""Attention of prompt rows on a CPU in bfloat16, whatever their positions in the sequence.

The kernel (`src/prefill_attention.c`) reads the cache in place, and for every row only the keys
that the row sees. `src/attention_pass.c` computes a few rows through several layers in one call,
the question's first pass, by the same operations as layer by layer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import native, rotation
from kvstitch.service.worker.kernels.cpu.decode_step import LayerParts
from kvstitch.service.worker.kernels.cpu.rotation import StoredSegment, layer_struct, segment_struct

LANES, QUERIES, KEYS = 32, 48, 96  # the same constants as in the C source


def supports(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether the kernel is there and takes these tensors."""
    d = q.shape[2]
    fits = q.dtype == k.dtype == v.dtype == torch.bfloat16 and q.device.type == "cpu"
    in_rows = all(x.stride()[1:] == (d, 1) for x in (q, k, v))
    return fits and in_rows and d % LANES == 0 and native.module() is not None


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Return attention `[m, heads * head_dim]` of rows that see the first `seen` `[m]` keys."""
    return _run(q, k, v, seen=seen, scale=scale)


def attend_with_scores(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, *, row_weights: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """`attend`, and how much attention each key gets `[n]` fp32: the softmax weights times their
    row's weight, summed over heads and rows.

    Raises:
        ValueError: `row_weights` is not one number for each row.
    """
    m, heads, _ = q.shape
    if row_weights.shape != (m,):
        raise ValueError(
            f"row_weights of shape {tuple(row_weights.shape)} for {m} rows: give one each"
        )
    kv_heads, n, _ = k.shape
    key_scores = torch.zeros(
        kv_heads * score_tiles(m, heads // kv_heads), n
    )  # by tile; the kernel adds them up in row 0
    row_weights = row_weights.float().contiguous()
    attended = _run(q, k, v, seen=seen, scale=scale, row_weights=row_weights, key_scores=key_scores)
    return attended, key_scores[0]


def score_tiles(m: int, group: int) -> int:
    """Return by how many tiles the queries of a KV head are scored."""
    return -(-m * group // QUERIES)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seen: Tensor,
    scale: float,
    row_weights: Tensor | None = None,
    key_scores: Tensor | None = None,
) -> Tensor:
    m, heads, d = q.shape
    out = q.new_empty(m, heads * d)
    threads = torch.get_num_threads()
    room = (2 * QUERIES + 2 * KEYS) * d + KEYS * QUERIES
    if key_scores is not None:
        room += (k.shape[1] + k.shape[1] // KEYS + 1) * QUERIES
    scratch = torch.empty(threads * room, dtype=torch.float32)
    native.call(
        "prefill_attention",
        *(q, k, v, out, seen, row_weights, key_scores, scratch),
        *(m, k.shape[1], heads, heads // len(k), d),
        *(q.stride(0), k.stride(0), v.stride(0), scale, room),
        *(native.has_bf16_dot(), threads),
    )
    return out


# Multiplications that take as long as placing a key's value and a value's.
PLACED = 64


class PassLayer(NamedTuple):
    parts: LayerParts
    k_cache: Tensor  # of the prompt `[kv_heads, n, head_dim]`; `v_cache` is like it
    v_cache: Tensor
    cos: Tensor  # table `[max_positions, head_dim / 2]` fp32; `sin` is like it
    sin: Tensor
    segments: Sequence[StoredSegment]  # what is placed in the cache first
    counts: bool  # whether its attention is scored


def supports_pass(
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


def pass_cost(parts: LayerParts, rows: int, n: int) -> int:
    """Return the work of a layer for so many rows in a prompt of n tokens, in multiplications."""
    _, heads, kv_heads, d = parts.sizes
    return rows * (parts.cost + 2 * heads * d * n) + PLACED * kv_heads * d * n


def run_pass(
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
