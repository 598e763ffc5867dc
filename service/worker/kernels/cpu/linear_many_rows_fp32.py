"""Linear layers for many rows (prefill and fusion) on a CPU that is slow in bfloat16. The kernel
(`src/linear_many_rows_fp32.c`) converts a weight to fp32 just before using it. The rows of x are
rearranged once into tiles; the result of a product is in tiles too, ready for the next."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import native

ROWS, LANES = 48, 32  # the same constants as in the C source
# Elements of an MLP's intermediate rows computed at a time, so that they are still in the cache
# for the next product.
ROOM = 256 * 1024
# Work between two pauses, in rows times weight rows: about 10 ms.
PAUSE = 1 << 19


def supports(x: Tensor, *weights: Tensor) -> bool:
    """Return whether the kernel takes products of x, or of their results, with the weights."""
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape[1] % LANES == 0
        and all(w.dtype == torch.bfloat16 for w in weights)
        and all(len(w) % LANES == 0 and w.stride(1) == 1 for w in weights)
        and native.module() is not None
    )


def pack(x: Tensor) -> Tensor:
    """x `[m, in]` bfloat16 → `[tiles, in, 48]`."""
    x, m = x.contiguous(), len(x)
    tiles = torch.empty(-(-m // ROWS), x.shape[1], ROWS)
    threads = torch.get_num_threads()
    native.call("linear_many_rows_fp32_pack", x, tiles, m, x.shape[1], threads)
    return tiles


def product(tiles: Tensor, m: int, weight: Tensor, *, add_to: Tensor | None = None) -> Tensor:
    """Return the product of tiles `[tiles, in, 48]` of m rows with a weight `[out, in]`
    bfloat16, as tiles `[tiles, out, 48]`, or added in place `add_to` such tiles."""
    count, columns, _ = tiles.shape
    out = tiles.new_empty(count, len(weight), ROWS) if add_to is None else add_to
    native.call(
        "linear_many_rows_fp32_product",
        *(tiles, weight, out),
        *(m, columns, len(weight), weight.stride(0), add_to is not None),
        torch.get_num_threads(),
    )
    return out


def unpack(tiles: Tensor, m: int, bias: Tensor | None = None) -> Tensor:
    """Return tiles `[tiles, out, 48]` plus bias `[out]` → `[m, out]` bfloat16, rounded once."""
    out = torch.empty(m, tiles.shape[1], dtype=torch.bfloat16)
    native.call(
        "linear_many_rows_fp32_unpack", tiles, bias, out, m, tiles.shape[1], torch.get_num_threads()
    )
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[m, in]`, weight `[out, in]`, bias `[out]`, bfloat16 → `[m, out]`; sums in fp32."""
    return unpack(product(pack(x), len(x), weight), len(x), bias)


def gated_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: Callable[[Tensor], Tensor]
) -> Generator[None, None, Tensor]:
    """down · (activation(gate · x) * (up · x)) of x `[m, hidden]` in fp32; pauses about every 10
    ms."""
    m, tiles, since = len(x), pack(x), 0
    out: Tensor | None = None
    width = -(-len(gate) // -(-len(gate) * m // ROOM))
    width = -(-width // LANES) * LANES
    for a in range(0, len(gate), width):
        if since >= PAUSE:
            since = 0
            yield None
        since += 3 * m * width
        part = slice(a, a + width)
        inner = activation(product(tiles, m, gate[part]))
        inner.mul_(product(tiles, m, up[part]))
        out = product(inner, m, down[:, part], add_to=out)
    assert out is not None
    return unpack(out, m)
