"""A layer of prompt rows in two calls, before and after its attention, on a CPU.

Of a small model and a few hundred rows, Python takes longer to call the operations one by one than
they take. The kernel (`src/layer_parts.c`) computes what they compute, bit by bit.
"""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from service.worker.kernels.cpu import linear_few_rows, linear_many_rows_bf16, native
from service.worker.kernels.cpu.decode_step import LayerWeights

LANES, MAX_WIDTH = 32, 1 << 13  # the same constants as in the C source


class LayerParts:
    """The compiled functions for one layer that it `supports`."""

    def __init__(self, weights: LayerWeights, *, heads: int, kv_heads: int, eps: float) -> None:
        self._weights = weights  # whose addresses the kernel is given
        self._layer = array("q", (*weights.addresses(), 0, 0))
        self._hidden, self._width = weights.o.shape
        head_dim = self._width // heads
        self._outs = (heads + 2 * kv_heads) * head_dim
        self.inner, self.eps = weights.down.shape[1], eps
        self.sizes = self._hidden, heads, kv_heads, head_dim
        self.heads = heads
        mlp = 3 * self._hidden * self.inner
        self.cost = mlp + self._hidden * (self._outs + self._width)
        # Rows that need no pause in between; what is quantised, the kernel for many does not take.
        dense = all(weight.bits == 16 for weight in weights.weights)
        self._most = linear_many_rows_bf16.PAUSE // mlp if dense else 0

    @property
    def address(self) -> int:
        """Where the C `struct layer` is."""
        return self._layer.buffer_info()[0]

    def takes(self, x: Tensor, *, batch: bool) -> bool:
        """Return whether it computes so many rows x `[m, hidden]`, and without need of a pause."""
        m, many = x.shape[0], native.has_bf16_dot() and x.shape[0] <= self._most
        return (
            m > 0
            and (many or self.few(m, batch=batch))
            and x.dtype == torch.bfloat16
            and x.device.type == "cpu"
            and x.is_contiguous()
        )

    def qkv(self, x: Tensor, *, batch: bool) -> Tensor:
        """Return queries, keys and values before RoPE `[m, heads + 2 * kv_heads, head_dim]`."""
        m = x.shape[0]
        out = x.new_empty(m, self._outs)
        native.call(
            "layer_qkv", self._layer, x, out, m, *self.sizes, self.eps, self.few(m, batch=batch),
            native.has_bf16_dot(), torch.get_num_threads(),
        )  # fmt: skip
        return out

    def finish(self, x: Tensor, attended: Tensor, *, batch: bool) -> Tensor:
        """Return what the layer makes of x `[m, hidden]` and attended `[m, heads * head_dim]`."""
        m, attended, out = x.shape[0], attended.contiguous(), torch.empty_like(x)
        native.call(
            "layer_finish", self._layer, x, attended, out, m, self._hidden, self._width,
            self.inner, self.eps, self.few(m, batch=batch), native.has_bf16_dot(),
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    @staticmethod
    def few(m: int, *, batch: bool) -> bool:
        """Return whether so many rows are multiplied by the kernel for few."""
        return m <= (linear_few_rows.MAX_BATCH if batch else linear_few_rows.MAX_ROWS)


def supports(weights: LayerWeights, heads: int) -> bool:
    """Return whether the kernel is there and takes this layer."""
    norms = [norm for norm in weights.norms if norm is not None]
    (hidden, width), inner = weights.o.shape, weights.down.shape[1]
    return (
        native.module() is not None
        and all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in norms)
        and all(x.is_contiguous() for x in norms)
        and all(weight.is_for_kernels for weight in weights.weights)
        and weights.gate_up.bias is weights.down.bias is None
        and all(size % LANES == 0 for size in (hidden, inner, width // heads))
        and hidden < MAX_WIDTH
    )
