"""Linear layers for few rows on a CPU, weights in bfloat16 or fewer bits: decoding, or a question
over a cache.

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
from service.worker.kernels.cpu.weight import Weight

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
        return self.product(x, Weight(weight, bias=bias))

    def product(self, x: Tensor, weight: Weight) -> Tensor:
        """`linear` with a weight that may be quantised."""
        outs, columns = weight.shape
        x, out = x.contiguous(), x.new_empty((len(x), outs))
        threads = torch.get_num_threads() if outs * columns >= MIN_PARALLEL else 1
        wide = None if self._bf16_dot else x.new_empty(x.shape, dtype=torch.float32)
        partial_sums = x.new_empty((threads, len(x), STRIP, LANES // 2), dtype=torch.float32)
        values, bias, scales, bits = weight.addresses()
        self._linear(
            x.data_ptr(),
            values,
            bias,
            scales,
            out.data_ptr(),
            None if wide is None else wide.data_ptr(),
            partial_sums.data_ptr(),
            len(x),
            outs,
            columns,
            weight.values.stride(0) * weight.values.element_size(),
            bits,
            threads,
        )
        return out


@cache
def kernel() -> Kernel | None:
    """Return the kernel, if it is compiled and this CPU can run it."""
    found = native.module()
    return Kernel(found, bf16_dot=native.has_bf16_dot()) if found is not None else None


def supports_product(x: Tensor, weight: Weight, *, batch: bool = False) -> bool:
    """`supports` for a weight that is contiguous, and may be quantised."""
    return (
        len(x) <= (MAX_BATCH if batch else MAX_ROWS)
        and x.dtype == torch.bfloat16
        and x.shape[1] % LANES == 0
        and weight.is_for_kernels
        and kernel() is not None
    )


def supports(x: Tensor, weight: Tensor, *, batch: bool = False) -> bool:
    """Return whether the kernel takes this product.

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


def product(x: Tensor, weight: Weight) -> Tensor:
    """`Kernel.product`, where `supports_product` is true."""
    found = kernel()
    assert found is not None, "ask `supports_product` first"
    return found.product(x, weight)
