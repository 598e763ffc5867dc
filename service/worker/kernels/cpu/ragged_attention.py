"""Attention of one new token per sequence on a CPU in bfloat16, over KV of unequal lengths.

The KV pool holds one run of consecutive rows for each sequence and KV head. torch's kernel takes
one sequence and one length at a time: 260 microseconds for 2,048 keys of two KV heads. The kernel
(`src/ragged_attention.c`) takes all runs of a layer in one call: 160 microseconds.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.cpu.shared_library import load_kernel

LANES, MAX_GROUP, MAX_STATE = 32, 64, 4096  # the same constants as in the C source
# Keys of all runs: fewer are done before other threads have woken up.
MIN_PARALLEL = 1024


class Kernel:
    """The compiled library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._attend = library.ragged_attention
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._attend.argtypes = [
            *[pointer] * 6, *[size] * 3, ctypes.c_float, ctypes.c_int
        ]  # fmt: skip
        self._attend.restype = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, runs: Tensor, scale: float) -> Tensor:
        """Softmax attention; softmax and sums in fp32.

        Args:
            q: `[sequences, heads, head_dim]`.
            k: the pool's rows, `[rows, head_dim]`.
            v: the pool's rows, `[rows, head_dim]`.
            runs: first row and number of rows of every sequence's every KV head,
                `[2, sequences * kv_heads]` int64; none is empty.
            scale: factor of the scores before the softmax.

        Returns:
            `[sequences, heads, head_dim]`.
        """
        q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
        starts, lengths = runs.contiguous()
        threads = torch.get_num_threads() if int(lengths.sum()) >= MIN_PARALLEL else 1
        self._attend(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            starts.data_ptr(),
            lengths.data_ptr(),
            len(starts),
            q.shape[0] * q.shape[1] // len(starts),
            q.shape[2],
            scale,
            threads,
        )
        return out


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is compiled and this CPU can run it."""
    return load_kernel("ragged_attention", Kernel)


def supports(q: Tensor, k: Tensor, group: int) -> bool:
    """Whether the kernel takes queries `[sequences, heads, head_dim]`, `group` per KV head."""
    return (
        q.dtype == k.dtype == torch.bfloat16
        and q.device.type == "cpu"
        and q.shape[2] % LANES == 0
        and group <= MAX_GROUP
        and group * q.shape[2] <= MAX_STATE
        and k.is_contiguous()
        and kernel() is not None
    )
