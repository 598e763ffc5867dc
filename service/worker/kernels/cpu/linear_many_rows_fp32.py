"""Linear layers for many rows (prefill and fusion) on a CPU that is slow in bfloat16. The kernel
(`src/linear_many_rows_fp32.c`) converts a weight to fp32 just before using it. The rows of x are
rearranged into tiles, and the product's tiles back into rows."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import native

ROWS, LANES = 48, 32  # the same constants as in the C source


def supports(x: Tensor, *weights: Tensor) -> bool:
    """Return whether the kernel takes products of x, or of their results, with the weights."""
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape[1] % LANES == 0
        and all(w.dtype == torch.bfloat16 for w in weights)
        and all(len(w) % LANES == 0 and w.stride(1) == 1 for w in weights)
        and native.module() is not None
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[m, in]`, weight `[out, in]`, bias `[out]`, bfloat16 → `[m, out]`; sums in fp32."""
    x, (m, columns), outs, threads = x.contiguous(), x.shape, len(weight), torch.get_num_threads()
    tiles, sums = (torch.empty(-(-m // ROWS), width, ROWS) for width in (columns, outs))
    out = x.new_empty(m, outs)
    native.call("linear_many_rows_fp32_pack", x, tiles, m, columns, threads)
    native.call(
        "linear_many_rows_fp32_product",
        *(tiles, weight, sums, m, columns, outs, weight.stride(0), threads),
    )
    native.call("linear_many_rows_fp32_unpack", sums, bias, out, m, outs, threads)
    return out
