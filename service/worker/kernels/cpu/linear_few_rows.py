"""Linear layers for few rows on a CPU, weights in bfloat16 or fewer bits: decoding, or a question
over a cache. The kernel (`src/linear_few_rows.c`) reads each weight once, in the order in which it
lies in memory, where torch rearranges the weight on every call."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import native
from kvstitch.service.worker.kernels.cpu.weight import Weight

# With more rows the kernels for many rows are faster (by a fifth at 32).
MAX_ROWS = 24
# The same limit for rows of different sequences. By default up to 32 sequences are decoded
# together, and an answer must not depend on how many: all these sizes use one kernel.
MAX_BATCH = 32
LANES, STRIP = 32, 32  # the same constants as in the C source
# Elements of a weight: smaller ones are done before other threads have woken up.
MIN_PARALLEL = 1 << 19


def supports_product(x: Tensor, weight: Weight, *, batch: bool = False) -> bool:
    """`supports` for a weight that is contiguous, and may be quantised."""
    return (
        len(x) <= (MAX_BATCH if batch else MAX_ROWS)
        and x.dtype == torch.bfloat16
        and x.shape[1] % LANES == 0
        and weight.is_for_kernels
        and native.module() is not None
    )


def supports(x: Tensor, weight: Tensor, *, batch: bool = False) -> bool:
    """Return whether the kernel takes x `[m, in]` (in a `batch`: of sequences), weight `[out,
    in]`."""
    return (
        len(x) <= (MAX_BATCH if batch else MAX_ROWS)
        and x.dtype == weight.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape[1] % LANES == 0
        and weight.stride(1) == 1
        and native.module() is not None
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[m, in]`, weight `[out, in]`, bias `[out]`, bfloat16 → `[m, out]`; sums in fp32."""
    return product(x, Weight(weight, bias=bias))


def product(x: Tensor, weight: Weight) -> Tensor:
    """`linear` with a weight that may be quantised, where `supports_product` is true."""
    outs, columns = weight.shape
    x, out = x.contiguous(), x.new_empty((len(x), outs))
    threads = torch.get_num_threads() if outs * columns >= MIN_PARALLEL else 1
    wide = None if native.has_bf16_dot() else x.new_empty(x.shape, dtype=torch.float32)
    partial_sums = x.new_empty((threads, len(x), STRIP, LANES // 2), dtype=torch.float32)
    values, bias, scales, bits = weight.addresses()
    row_bytes = weight.values.stride(0) * weight.values.element_size()
    native.call(
        "linear_few_rows",
        *(x, values, bias, scales, out, wide, partial_sums),
        *(len(x), outs, columns, row_bytes, bits, threads),
    )
    return out
