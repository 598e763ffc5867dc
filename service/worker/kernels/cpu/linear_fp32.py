"""Linear layers on a CPU with AVX2 and no AVX-512, which is fast in fp32 alone: most laptops and
cheap servers. The kernel (`src/linear_fp32.c`) reads a weight as it is stored, in fp32, bfloat16,
int8 or int4, where torch needs it in fp32."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import measured, native
from kvstitch.service.worker.kernels.cpu.weight import Weight

LANES, WEIGHTS, FEW = 32, 4, 32  # the same constants as in the C source
# Rows: of more, x falls out of the cache before it is used again, and torch is ahead.
MOST = 252
# Elements of a weight: smaller ones are done before other threads have woken up.
MIN_PARALLEL = 1 << 17


def supports(x: Tensor, weight: Weight) -> bool:
    """Return whether the kernel takes x `[m, in]`, and is the faster way."""
    (outs, columns), values = weight.shape, weight.values
    known = values.dtype in (torch.float32, torch.bfloat16) or weight.scales is not None
    return (
        native.has_avx2_alone()
        and known
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.device.type == values.device.type == "cpu"
        and columns % LANES == outs % WEIGHTS == 0 < len(x)
        and values.is_contiguous()
        and (weight.scales is None or weight.scales.is_contiguous())
        and (len(x) <= FEW or (len(x) <= MOST and is_fast()))
    )


def product(x: Tensor, weight: Weight) -> Tensor:
    """x `[m, in]` in fp32 or bfloat16, weight `[out, in]` → `[m, out]` in x's dtype."""
    (outs, columns), wide = weight.shape, x.float().contiguous()
    out, bits = torch.empty(len(x), outs), weight.bits
    bits = 32 if weight.values.dtype == torch.float32 else bits
    threads = torch.get_num_threads() if outs * columns >= MIN_PARALLEL else 1
    sizes = len(x), outs, columns, bits
    native.call("linear_fp32", wide, weight.values, weight.scales, out, *sizes, threads)
    return (out if weight.bias is None else out.add_(weight.bias)).to(x.dtype)


@cache
def is_fast() -> bool:
    """Return whether many rows are multiplied about as fast as by torch."""
    x, weight = torch.ones(192, 1024), Weight(torch.ones(1024, 1024, dtype=torch.bfloat16))
    return measured.is_fast(
        "192 rows by a weight of 1 M",
        partial(product, x, weight),
        lambda: torch.mm(x, weight.dequantised(x.dtype).t()),
    )
