"""Attention of prompt rows on a CPU in bfloat16, whatever their positions in the sequence.

torch's kernel works on fp32 copies, computes a mask for every tile of rows, and is slower for rows
at scattered positions than for as many consecutive ones. The kernel (`src/prefill_attention.c`)
reads the cache in place, and for every row only the keys that the row sees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from service.worker.kernels.cpu import native

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
