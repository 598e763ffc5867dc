"""Linear layers for few rows on a CPU, weights in bfloat16: decoding, or a question over a cache.

The kernel (`src/linear_few_rows.c`) reads each weight once, in the order in which it lies in
memory. torch rearranges the weight on every call and runs at about half the speed, for one row and
for eight; keeping a rearranged copy would take the weight's memory a second time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from service.worker.kernels.cpu import native

# With more rows the kernels for many rows are faster (by a fifth at 32).
MAX_ROWS = 24
# The same limit for rows of different sequences. By default up to 32 sequences are decoded
# together, and an answer must not depend on how many: all these sizes use one kernel.
MAX_BATCH = 32
LANES, STRIP = 32, 32  # the same constants as in the C source
# Elements of a weight: smaller ones are done before other threads have woken up.
MIN_PARALLEL = 1 << 19


class Kernel:
    """The compiled function.

    Args:
        module: the compiled module.
        bf16_dot: whether to use the CPU's bfloat16 dot products, which it must have.
    """

    def __init__(self, module: Any, *, bf16_dot: bool = False) -> None:
        self._bf16_dot = bf16_dot
        self._linear = module.linear_few_rows

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x `[m, in]`, weight `[out, in]`, bias `[out]`, bfloat16 → `[m, out]`; sums in fp32."""
        x, out = x.contiguous(), x.new_empty((len(x), len(weight)))
        threads = torch.get_num_threads() if weight.numel() >= MIN_PARALLEL else 1
        wide = None if self._bf16_dot else x.new_empty(x.shape, dtype=torch.float32)
        partial_sums = x.new_empty((threads, len(x), STRIP, LANES // 2), dtype=torch.float32)
        self._linear(
            x.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            None if wide is None else wide.data_ptr(),
            partial_sums.data_ptr(),
            len(x),
            len(weight),
            x.shape[1],
            weight.stride(0),
            threads,
        )
        return out


@cache
def kernel() -> Kernel | None:
    """The kernel, if it is compiled and this CPU can run it."""
    found = native.module()
    return Kernel(found, bf16_dot=native.has_bf16_dot()) if found is not None else None


def supports(x: Tensor, weight: Tensor, *, batch: bool = False) -> bool:
    """Whether the kernel takes this product.

    Args:
        x: `[m, in]`.
        weight: `[out, in]`.
        batch: whether the rows belong to different sequences.
    """
    return (
        len(x) <= (MAX_BATCH if batch else MAX_ROWS)
        and x.dtype == weight.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape[1] % LANES == 0
        and weight.stride(1) == 1
        and kernel() is not None
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`Kernel.linear`, where `supports` is true."""
    found = kernel()
    assert found is not None, "ask `supports` first"
    return found.linear(x, weight, bias)
