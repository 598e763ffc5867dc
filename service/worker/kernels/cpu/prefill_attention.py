"""Attention of a prompt's rows on a CPU in bfloat16, wherever they stand in the sequence.

torch's kernel works on fp32 copies, computes masks for every tile of rows and is slower for rows at
scattered indices than for as many that follow one another; the one in `prefill_attention.c` reads
the cache as it lies, and every row up to what it sees. Knows no model.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.cpu import linear_many_rows_bf16
from service.worker.kernels.cpu.shared_library import load_kernel

LANES, QUERIES, KEYS = 32, 48, 96  # as in the kernel


class Kernel:
    """The built library. narrow: by the CPU's bfloat16 dot products, which it must have."""

    def __init__(self, library: ctypes.CDLL, *, narrow: bool = False) -> None:
        self._narrow = narrow
        self._attend = library.prefill_attention_attend
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._attend.argtypes = [
            *[pointer] * 8,
            *[size] * 8,
            ctypes.c_float,
            size,
            *[ctypes.c_int] * 2,
        ]
        self._attend.restype = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
        """q `[m, heads, d]`, k, v `[kv_heads, n, d]`, seen `[m]` int64: how many of the first keys
        a row sees, at least 1. Returns `[m, heads * d]`; softmax and sums in fp32."""
        return self._run(q, k, v, seen, scale, None, None)

    def attend_with_scores(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, share: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """`attend`, and by key the weights of all heads and rows, a row's times its share `[m]`:
        `[n]` fp32. Raises ValueError for a share that is not one number a row."""
        m, heads, _ = q.shape
        if share.shape != (m,):
            raise ValueError(f"shares {tuple(share.shape)} of {m} rows: give one number a row")
        kv_heads, n, _ = k.shape
        tiles = -(-m * (heads // kv_heads) // QUERIES)
        told = torch.zeros(kv_heads * tiles, n)
        return self._run(q, k, v, seen, scale, share.float().contiguous(), told), told[0]

    def _run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seen: Tensor,
        scale: float,
        share: Tensor | None,
        told: Tensor | None,
    ) -> Tensor:
        m, heads, d = q.shape
        out = q.new_empty(m, heads * d)
        threads = torch.get_num_threads()
        room = (2 * QUERIES + 2 * KEYS) * d + KEYS * QUERIES
        if told is not None:
            room += (k.shape[1] + k.shape[1] // KEYS + 1) * QUERIES
        scratch = torch.empty(threads * room, dtype=torch.float32)
        self._attend(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            seen.data_ptr(),
            None if share is None else share.data_ptr(),
            None if told is None else told.data_ptr(),
            scratch.data_ptr(),
            m,
            k.shape[1],
            heads,
            heads // len(k),
            d,
            q.stride(0),
            k.stride(0),
            v.stride(0),
            scale,
            room,
            self._narrow,
            threads,
        )
        return out


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is built and this CPU can run it."""
    narrow = linear_many_rows_bf16.kernel() is not None
    return load_kernel("prefill_attention", lambda library: Kernel(library, narrow=narrow))


def kernel_for(q: Tensor, k: Tensor, v: Tensor) -> Kernel | None:
    """The kernel, if it takes these."""
    d = q.shape[2]
    fits = q.dtype == k.dtype == v.dtype == torch.bfloat16 and q.device.type == "cpu"
    in_rows = all(x.stride()[1:] == (d, 1) for x in (q, k, v))
    return kernel() if fits and in_rows and d % LANES == 0 else None
