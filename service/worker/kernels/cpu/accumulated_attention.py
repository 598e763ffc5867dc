"""How much attention later tokens pay each token of a prompt, on a CPU in bfloat16.

In torch every weight of every head goes through memory several times: 512 tokens of 14 heads take
6.8 ms on one thread and 9.1 on two, in the kernel of `accumulated_attention.c` 3.6 and 2.1. Knows no
sketch.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.cpu import linear_many_rows_bf16
from service.worker.kernels.cpu.shared_library import load_kernel

ROWS, WIDTH = 6, 64  # as in the kernel


class Kernel:
    """The built library. narrow: by the CPU's bfloat16 dot products, which it must have."""

    def __init__(self, library: ctypes.CDLL, *, narrow: bool = False) -> None:
        self._narrow = narrow
        self._mass = library.accumulated_attention_rows
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._mass.argtypes = [*[pointer] * 5, *[size] * 8, ctypes.c_float, *[ctypes.c_int] * 2]
        self._mass.restype = None

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """q `[T, heads, d]`, k `[kv_heads, first + T, d]`, both after RoPE. Returns the attention
        that all later queries together pay each of the T tokens, summed over heads, `[T]`, and
        every query's log normaliser `[heads, T]`; fp32."""
        tokens, heads, d = q.shape
        kv_heads, n, _ = k.shape
        keys = -(-n // WIDTH) * WIDTH
        threads = torch.get_num_threads()
        mass, norm = torch.empty(heads, keys), torch.empty(heads, tokens)
        scratch = torch.empty(threads, (d + ROWS) * keys + ROWS * d)
        self._mass(
            q.data_ptr(),
            k.data_ptr(),
            mass.data_ptr(),
            norm.data_ptr(),
            scratch.data_ptr(),
            tokens,
            n,
            keys,
            heads,
            heads // kv_heads,
            d,
            q.stride(0),
            k.stride(0),
            scale,
            self._narrow,
            threads,
        )
        return mass[:, n - tokens : n].sum(0), norm.mul_(math.log(2))


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is built and this CPU can run it."""
    narrow = linear_many_rows_bf16.kernel() is not None
    return load_kernel("accumulated_attention", lambda library: Kernel(library, narrow=narrow))


def kernel_for(q: Tensor, k: Tensor) -> Kernel | None:
    """The kernel, if it takes these."""
    d = q.shape[2]
    fits = q.dtype == k.dtype == torch.bfloat16 and q.device.type == "cpu"
    in_rows = q.stride()[1:] == (d, 1) and k.stride()[1:] == (d, 1)
    return kernel() if fits and in_rows and d % 2 == 0 else None
