"""What each Triton kernel of the worker computes, in torch.

The arguments are those that the kernel gets at its launch; strides and block sizes are not needed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def rotate_rows(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, out: Tensor, *_: Any, **__: Any
) -> None:
    out.copy_(_turned(x, cos[positions], sin[positions]))


def write_rows(
    q: Tensor, k: Tensor, v: Tensor, rotated: Tensor, k_all: Tensor, v_all: Tensor,
    positions: Tensor, into: Tensor, cos: Tensor, sin: Tensor, *_: Any, QUERIES: int,
    SCATTERED: bool, **__: Any,
) -> None:  # fmt: skip
    if QUERIES:
        rotated.copy_(_turned(q, cos[positions], sin[positions]))
    k = _turned(k, cos[positions], sin[positions])
    if SCATTERED:
        k_all.view(-1, k.shape[-1])[into] = k.flatten(0, 1)
        v_all.view(-1, v.shape[-1])[into] = v.flatten(0, 1)
    else:
        k_all[:, positions], v_all[:, positions] = k.transpose(0, 1), v.transpose(0, 1)


def place_rows(
    values: Tensor, scales: Tensor, programs: Tensor, positions: Tensor, cos: Tensor, sin: Tensor,
    k_out: Tensor, v_out: Tensor, starts: Tensor, out_head: int, out_row: int, staged_layer: int,
    layer: int, *_: Any, GRID: tuple[int, ...], SCALED: bool, **__: Any,
) -> None:  # fmt: skip
    heads, layers = GRID[1:]
    d = 2 * cos.shape[1]
    for number in range(layers):
        start = int(starts[layer + number])
        for k, v, k_scale, v_scale, first, row, rows, stride in programs.tolist():
            skipped = (staged_layer + number) * stride
            span, end = slice(first, first + rows), (first + rows) * heads
            at = positions[row : row + rows]
            for at_x, at_scale, out in ((k, k_scale, k_out), (v, v_scale, v_out)):
                x = values[at_x + skipped :][: end * d].view(-1, heads, d)[span]
                if SCALED:
                    by = scales[at_scale + skipped // 2 :][:end].view(-1, heads)[span].float()
                    x = (x.float() * by[..., None]).to(out.dtype)
                if out is k_out:
                    x = _turned(x, cos[at], sin[at])
                offset = out.storage_offset() + start + row * out_row
                into = out.as_strided((heads, rows, d), (out_head, out_row, 1), offset)
                into.copy_(x.transpose(0, 1))


def multiply_gated(x: Tensor, out: Tensor, *_: Any, **__: Any) -> None:
    gate, up = x.chunk(2, -1)
    out.copy_(F.silu(gate) * up)


def attend_tile(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, out: Tensor, m: int, scale: float,
    *_: Any, **__: Any,
) -> None:  # fmt: skip
    seen = torch.arange(k.shape[1]) <= rows[:, None]
    attended = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None].float(), k[None].float(), v[None].float(), attn_mask=seen,
        scale=scale, enable_gqa=True,
    )  # fmt: skip
    out.copy_(attended[0].transpose(0, 1))
