"""Products of few rows with bfloat16 weights on a CPU: decoding and a question over a cache.

The kernel (`linear_few_rows.c`, built when the package is installed where there is a C compiler) reads a
weight as it lies in memory, once. torch's own product rearranges it at every call, at about half
the speed for one row and for eight; a rearranged copy would be twice the memory. Without the built
kernel, or on a CPU that lacks AVX-512, everything goes on with torch's. Knows no model.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.cpu import linear_many_rows_bf16
from service.worker.kernels.cpu.shared_library import load_kernel

# From here on the kernel for many rows is faster (a fifth at 32).
MAX_ROWS = 24
# Rows of as many sequences as are decoded together by default: an answer must not depend on how
# many they are, so all of these sizes have one kernel.
MAX_BATCH = 32
LANES, STRIP = 32, 24  # as in the kernel
# Less is computed sooner than threads are woken.
MIN_PARALLEL = 1 << 19


class Kernel:
    """The built library. narrow: by the CPU's bfloat16 dot products, which it must have."""

    def __init__(self, library: ctypes.CDLL, *, narrow: bool = False) -> None:
        self._narrow = narrow
        self._linear = library.linear_few_rows_product
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._linear.argtypes = [*[pointer] * 6, *[size] * 4, *[ctypes.c_int] * 2]
        self._linear.restype = None

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x `[m, in]`, weight `[out, in]`, bias `[out]`, bfloat16 → `[m, out]`; sums in fp32."""
        x, out = x.contiguous(), x.new_empty((len(x), len(weight)))
        scratch = x.new_empty((0 if self._narrow else len(x), x.shape[1]), dtype=torch.float32)
        threads = torch.get_num_threads() if weight.numel() >= MIN_PARALLEL else 1
        carried = x.new_empty((threads, len(x), STRIP, LANES // 2), dtype=torch.float32)
        self._linear(
            x.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            carried.data_ptr(),
            len(x),
            len(weight),
            x.shape[1],
            weight.stride(0),
            self._narrow,
            threads,
        )
        return out


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is built and this CPU can run it."""
    narrow = linear_many_rows_bf16.kernel() is not None
    return load_kernel("linear_few_rows", lambda library: Kernel(library, narrow=narrow))


def supports(x: Tensor, weight: Tensor, *, batch: bool = False) -> bool:
    """Whether the kernel takes this product; batch: of rows of different sequences."""
    return (
        len(x) <= (MAX_BATCH if batch else MAX_ROWS)
        and x.dtype == weight.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape[1] % LANES == 0
        and weight.stride(1) == 1
        and kernel() is not None
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product that `serves` allowed."""
    found = kernel()
    assert found is not None
    return found.linear(x, weight, bias)
