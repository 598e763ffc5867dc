"""Attention of one new token per sequence on a CPU, over KV in bfloat16 that lies in runs of rows
of a pool: a run per sequence and KV head, as long as it happens to be.

torch's kernel takes one sequence and one length at a time, and 260 microseconds for 2,048 keys of
two KV heads; the kernel in `ragged_attention.c` takes all runs of a layer in one call, and 160.
Without it torch's is used. Knows no model and no sequence.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from service.worker.kernels.cpu.shared_library import load_kernel

LANES, MAX_GROUP, MAX_STATE = 32, 64, 4096  # as in the kernel
# Keys of all runs: fewer are done sooner than threads are woken.
MIN_PARALLEL = 1024


class Kernel:
    """The built library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._attend = library.ragged_attention
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._attend.argtypes = [
            *[pointer] * 6, *[size] * 3, ctypes.c_float, ctypes.c_int
        ]  # fmt: skip
        self._attend.restype = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, runs: Tensor, scale: float) -> Tensor:
        """q `[sequences, heads, d]`; k, v: the pool's rows `[rows, d]`; runs: where the keys of
        every sequence's every KV head start and how many they are, int64 `[2, sequences *
        kv_heads]`, none empty → `[sequences, heads, d]`. Softmax and sums in fp32."""
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
    """The kernel, if it is built and this CPU can run it."""
    return load_kernel("ragged_attention", Kernel)


def supports(q: Tensor, k: Tensor, group: int) -> bool:
    """Whether the kernel takes queries `[sequences, heads, d]`, `group` of them to a KV head."""
    return (
        q.dtype == k.dtype == torch.bfloat16
        and q.device.type == "cpu"
        and q.shape[2] % LANES == 0
        and group <= MAX_GROUP
        and group * q.shape[2] <= MAX_STATE
        and k.is_contiguous()
        and kernel() is not None
    )
