"""Linear layers for many rows on a CPU whose bfloat16 dot products are fast (AVX512-BF16):
`linear_many_rows_fp32` without the conversion to fp32 (`src/linear_many_rows_bf16.c`)."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import linear_many_rows_fp32, native

ROWS, TILES, LANES = 48, 4, 32  # the same constants as in the C source
# Bytes of the rows that an MLP computes at a time: what fits into the L2 cache.
ROOM = 800 * 1024
# Multiplications between two pauses: about 8 ms on one core.
PAUSE = 1 << 31
# Elements: fewer are packed before other threads have woken up.
MIN_PARALLEL = 1 << 18


def supports(x: Tensor, *weights: Tensor) -> bool:
    """Return whether the kernel takes products of x, or of their results, with the weights."""
    return len(x) > 0 and linear_many_rows_fp32.supports(x, *weights) and native.has_bf16_dot()


def supports_gated_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: Callable[[Tensor], Tensor]
) -> bool:
    """Return whether the kernel takes this MLP. It has one activation, silu."""
    same = activation is F.silu and gate.stride(0) == up.stride(0)
    return same and supports(x, gate, up, down)


def pack(x: Tensor) -> Tensor:
    """x `[m, in]` bfloat16 → `[tiles, in / 2, 48, 2]`."""
    x, m = (x if x.stride(1) == 1 else x.contiguous()), len(x)
    pairs = x.new_empty(-(-m // ROWS), x.shape[1] // 2, ROWS, 2)
    threads = torch.get_num_threads() if x.numel() >= MIN_PARALLEL else 1
    native.call("linear_many_rows_bf16_pack", x, pairs, m, x.shape[1], x.stride(0), threads)
    return pairs


def product(pairs: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """Write the product of tiles `[tiles, in / 2, 48, 2]` with a weight `[n, in]` into `out`
    `[m, n]`; sums in fp32, rounded once."""
    m, n = out.shape
    scratch = torch.empty(min(len(pairs), TILES), n, ROWS)
    native.call(
        "linear_many_rows_bf16_product",
        *(pairs, weight, bias, out, scratch),
        *(m, weight.shape[1], n, weight.stride(0), out.stride(0)),
        torch.get_num_threads(),
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[m, in]`, weight `[out, in]`, bias `[out]`, bfloat16 → `[m, out]`; sums in fp32."""
    out = x.new_empty(len(x), len(weight))
    product(pack(x), weight, out, bias)
    return out


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Generator[None, None, Tensor]:
    """down · (silu(gate · x) * (up · x)) of x `[m, hidden]`, with pauses about every 8 ms.
    Intermediate values are rounded to bfloat16 once."""
    (width, hidden), m = gate.shape, len(x)
    out, since = x.new_empty(m, len(down)), 0
    tiles = max(1, min(TILES, ROOM // (2 * ROWS * hidden)))
    inner = x.new_empty(min(tiles, -(-m // ROWS)), width // 2, ROWS, 2)
    for first in range(0, m, tiles * ROWS):
        block = slice(first, min(first + tiles * ROWS, m))
        pairs, rows = pack(x[block]), block.stop - block.start
        for part, cost in _parts(width, 2 * rows * hidden):
            since = yield from _pause(since, cost)
            _gated_part(pairs, gate, up, inner, rows=rows, part=part)
        for part, cost in _parts(len(down), rows * width):
            since = yield from _pause(since, cost)
            product(inner, down[part], out[block, part])
    return out


def _gated_part(
    pairs: Tensor, gate: Tensor, up: Tensor, inner: Tensor, *, rows: int, part: slice
) -> None:
    """Columns `part` of silu(gate · x) * (up · x) into the tiles `inner`."""
    native.call(
        "linear_many_rows_bf16_gated",
        *(pairs, gate, up, inner),
        *(rows, gate.shape[1], len(gate), part.start, part.stop, gate.stride(0)),
        torch.get_num_threads(),
    )


def _parts(outs: int, each: int) -> list[tuple[slice, int]]:
    """Return slices of a weight's rows that fit between two pauses, and the cost of each."""
    step = max(PAUSE // each // LANES, 1) * LANES
    return [
        (slice(a, min(a + step, outs)), min(step, outs - a) * each) for a in range(0, outs, step)
    ]


def _pause(since: int, coming: int) -> Generator[None, None, int]:
    """Pause if the coming work would exceed the limit; returns the work since the last pause."""
    if since and since + coming > PAUSE:
        since = 0
        yield None
    return since + coming
