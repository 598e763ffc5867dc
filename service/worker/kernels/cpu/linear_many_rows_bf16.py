"""Products of many rows with bfloat16 weights on a CPU whose bfloat16 dot products are fast.

AVX512-BF16 is twice as fast as fp32 on some CPUs (AMD's Zen 5: 520 against 250 GFLOP/s of one
core) and no faster on others that have it too, so `kernel` tries it once. The kernel
(`linear_many_rows_bf16.c`) does what `linear_many_rows_fp32` does, without widening anything. Knows no model.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Generator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.kernels.cpu import linear_many_rows_fp32
from service.worker.kernels.cpu.shared_library import load_kernel

ROWS, TILES, LANES = 48, 4, 32  # as in the kernel
# Bytes of the rows that an MLP computes at a time: what the second cache keeps.
ROOM = 800 * 1024
# Multiplications between two pauses: about 8 ms of one core.
PAUSE = 1 << 31
# Fewer values are packed sooner than threads are woken.
MIN_PARALLEL = 1 << 18
# How much faster than fp32 it has to be: were it about as fast, every start would choose anew.
WORTH = 1.25


class Kernel:
    """The built library. Tiles of pairs are `[tiles, columns / 2, 48, 2]`: 48 rows each."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size, number = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
        self._pack = library.linear_many_rows_bf16_pack
        self._pack.argtypes = [pointer, pointer, *[size] * 3, number]
        self._pack.restype = None
        self._linear = library.linear_many_rows_bf16_linear
        self._linear.argtypes = [*[pointer] * 5, *[size] * 5, number]
        self._linear.restype = None
        self._gated = library.linear_many_rows_bf16_gated
        self._gated.argtypes = [*[pointer] * 4, *[size] * 6, number]
        self._gated.restype = None

    def pack(self, x: Tensor) -> Tensor:
        """x `[m, in]` bfloat16 → its tiles."""
        x, m = (x if x.stride(1) == 1 else x.contiguous()), len(x)
        pairs = x.new_empty(-(-m // ROWS), x.shape[1] // 2, ROWS, 2)
        threads = torch.get_num_threads() if x.numel() >= MIN_PARALLEL else 1
        self._pack(x.data_ptr(), pairs.data_ptr(), m, x.shape[1], x.stride(0), threads)
        return pairs

    def product(
        self, pairs: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None
    ) -> None:
        """Writes the product of the tiles of some rows x, weight `[n, in]`, bias `[n]` to
        `out` `[m, n]`: rounded once, after sums in fp32."""
        m, n = out.shape
        scratch = torch.empty(min(len(pairs), TILES), n, ROWS)
        self._linear(
            pairs.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            m,
            weight.shape[1],
            n,
            weight.stride(0),
            out.stride(0),
            torch.get_num_threads(),
        )

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x `[m, in]`, weight `[out, in]`, bias `[out]`, bfloat16 → `[m, out]`; sums in fp32."""
        out = x.new_empty(len(x), len(weight))
        self.product(self.pack(x), weight, out, bias)
        return out

    def gated_mlp(
        self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor
    ) -> Generator[None, None, Tensor]:
        """down · (silu(gate · x) * (up · x)) of x `[m, hidden]`, between rounded to bfloat16 once.
        Pauses. A block of rows goes through the whole MLP before the next one."""
        (width, hidden), m = gate.shape, len(x)
        out, since = x.new_empty(m, len(down)), 0
        tiles = max(1, min(TILES, ROOM // (2 * ROWS * hidden)))
        inner = x.new_empty(min(tiles, -(-m // ROWS)), width // 2, ROWS, 2)
        for first in range(0, m, tiles * ROWS):
            block = slice(first, min(first + tiles * ROWS, m))
            pairs, rows = self.pack(x[block]), block.stop - block.start
            for part, cost in _parts(width, 2 * rows * hidden):
                since = yield from _paused(since, cost)
                self._gated_part(pairs, gate, up, inner, rows, part.start, part.stop)
            for part, cost in _parts(len(down), rows * width):
                since = yield from _paused(since, cost)
                self.product(inner, down[part], out[block, part])
        return out

    def _gated_part(
        self,
        pairs: Tensor,
        gate: Tensor,
        up: Tensor,
        inner: Tensor,
        rows: int,
        first: int,
        last: int,
    ) -> None:
        self._gated(
            pairs.data_ptr(),
            gate.data_ptr(),
            up.data_ptr(),
            inner.data_ptr(),
            rows,
            gate.shape[1],
            len(gate),
            first,
            last,
            gate.stride(0),
            torch.get_num_threads(),
        )


def _parts(outs: int, each: int) -> list[tuple[slice, int]]:
    """Rows of a weight that cost `each` multiplications, as many at a time as fit between two
    pauses; and what they cost."""
    step = max(PAUSE // each // LANES, 1) * LANES
    return [
        (slice(a, min(a + step, outs)), min(step, outs - a) * each) for a in range(0, outs, step)
    ]


def _paused(since: int, coming: int) -> Generator[None, None, int]:
    """Pauses if what comes would be too much after what was done since the last pause."""
    if since and since + coming > PAUSE:
        since = 0
        yield None
    return since + coming


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is built, this CPU can run it, and it is worth it here; not on a CPU with
    tile units, which torch uses."""
    if torch.cpu._is_amx_tile_supported():
        return None
    found, plain = load_kernel("linear_many_rows_bf16", Kernel), linear_many_rows_fp32.kernel()
    if found is None or plain is None:
        return None
    return found if is_faster_than_fp32(found, plain) else None


def is_faster_than_fp32(found: Kernel, plain: linear_many_rows_fp32.Kernel) -> bool:
    """Whether this CPU multiplies bfloat16 faster than fp32: about a millisecond to find out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x, weight = torch.ones(2, 48, 512, dtype=torch.bfloat16)
        tiles, pairs, out = plain.pack(x), found.pack(x), torch.empty_like(x[:, :48])
        fp32 = _least_time(lambda: plain.product(tiles, len(x), weight))
        narrow = _least_time(lambda: found.product(pairs, weight, out))
    finally:
        torch.set_num_threads(threads)
    return fp32 > WORTH * narrow


def _least_time(run: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def supports(x: Tensor, *weights: Tensor) -> bool:
    """Whether the kernel takes these products: of x, or of results of x as wide as a weight."""
    return len(x) > 0 and linear_many_rows_fp32.supports(x, *weights) and kernel() is not None


def supports_gated_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: Callable[[Tensor], Tensor]
) -> bool:
    """Whether the kernel takes this MLP: it knows one activation, silu."""
    same = activation is F.silu and gate.stride(0) == up.stride(0)
    return same and supports(x, gate, up, down)


def _kernel() -> Kernel:
    found = kernel()
    assert found is not None, "ask `serves` first"
    return found


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product that `serves` allowed."""
    return _kernel().linear(x, weight, bias)


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Generator[None, None, Tensor]:
    """The MLP that `serves_mlp` allowed."""
    return _kernel().gated_mlp(x, gate, up, down)
