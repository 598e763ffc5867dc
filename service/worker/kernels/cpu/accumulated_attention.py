"""Accumulated attention on a CPU in bfloat16: how much later tokens attend to each prompt token.

In torch every softmax weight of every head goes through memory several times: 512 tokens of 14
heads take 6.8 ms on one thread and 9.1 ms on two. The kernel (`src/accumulated_attention.c`) takes
3.6 ms and 2.1 ms.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from service.worker.kernels.cpu import native

ROWS, WIDTH = 6, 64  # the same constants as in the C source


class Kernel:
    """The compiled function.

    Args:
        module: the compiled module.
        bf16_dot: whether to use the CPU's bfloat16 dot products, which it must have.
    """

    def __init__(self, module: Any, *, bf16_dot: bool = False) -> None:
        self._bf16_dot = bf16_dot
        self._accumulate = module.accumulated_attention

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Softmax weights added up by key instead of being multiplied with values.

        Args:
            q: `[tokens, heads, head_dim]`, after RoPE.
            k: `[kv_heads, first + tokens, head_dim]`, after RoPE; the queries are those of the
                last `tokens` keys.
            scale: factor of the scores before the softmax.

        Returns:
            The attention that all later queries together pay each of the tokens, summed over
            heads, `[tokens]`, and the log of every query's softmax sum, `[heads, tokens]`; fp32.
        """
        tokens, heads, d = q.shape
        kv_heads, n, _ = k.shape
        keys = -(-n // WIDTH) * WIDTH
        threads = torch.get_num_threads()
        sums, norm = torch.empty(heads, keys), torch.empty(heads, tokens)
        scratch = torch.empty(threads, (d + ROWS) * keys + ROWS * d)
        self._accumulate(
            q.data_ptr(),
            k.data_ptr(),
            sums.data_ptr(),
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
            self._bf16_dot,
            threads,
        )
        return sums[:, n - tokens : n].sum(0), norm.mul_(math.log(2))


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is compiled and this CPU can run it."""
    found = native.module()
    return Kernel(found, bf16_dot=native.has_bf16_dot()) if found is not None else None


def kernel_for(q: Tensor, k: Tensor) -> Kernel | None:
    """The kernel, if it takes these tensors."""
    d = q.shape[2]
    fits = q.dtype == k.dtype == torch.bfloat16 and q.device.type == "cpu"
    in_rows = q.stride()[1:] == (d, 1) and k.stride()[1:] == (d, 1)
    return kernel() if fits and in_rows and d % 2 == 0 else None
