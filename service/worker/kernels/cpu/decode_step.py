"""Whole layers in one call on a CPU, in bfloat16 or with quantised weights: a decode step through
all of them (`src/decode_step.c`), and a layer of prompt rows in two calls, before and after its
attention (`src/layer_parts.c`). Called one by one, the operations of a small model take longer to
start than to compute."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import linear_few_rows, linear_many_rows_bf16, native
from kvstitch.service.worker.kernels.cpu.weight import Weight

LANES, MAX_GROUP, MAX_STATE = 32, 64, 4096  # the same constants as in the C source
# Values of all weights: a smaller model is done before other threads have woken up.
MIN_PARALLEL = 1 << 22


@dataclass(frozen=True)
class LayerWeights:
    """The parameters of a layer; None for a norm that it does not have."""

    norm: Tensor  # RMSNorm before attention `[hidden]`
    q_norm: Tensor | None  # RMSNorm of every query head `[head_dim]`
    k_norm: Tensor | None  # RMSNorm of every key head `[head_dim]`
    mlp_norm: Tensor  # RMSNorm before the MLP `[hidden]`
    qkv: Weight  # `[(heads + 2 * kv_heads) * head_dim, hidden]`
    o: Weight  # `[hidden, heads * head_dim]`
    gate_up: Weight  # `[2 * intermediate, hidden]`, the gate first
    down: Weight  # `[hidden, intermediate]`

    @property
    def norms(self) -> list[Tensor | None]:
        return [self.norm, self.q_norm, self.k_norm, self.mlp_norm]

    @property
    def weights(self) -> list[Weight]:
        return [self.qkv, self.o, self.gate_up, self.down]

    def addresses(self) -> list[int]:
        """Return the C `struct layer` without its pool."""
        weights = [number for weight in self.weights for number in weight.addresses()]
        return [*map(_address, self.norms), *weights]


@dataclass(frozen=True)
class DecoderWeights:
    """A pre-norm decoder with GQA, RoPE and an MLP gated by silu."""

    layers: Sequence[LayerWeights]  # its layers
    norm: Tensor  # the last RMSNorm `[hidden]`
    head: Weight  # `[vocabulary, hidden]`
    cos: Tensor  # `[positions, head_dim / 2]` fp32
    sin: Tensor  # like `cos`
    heads: int  # query heads
    kv_heads: int  # key and value heads
    eps: float  # of all norms
    scale: float  # factor of the scores before the softmax

    @property
    def head_dim(self) -> int:
        return self.layers[0].o.shape[1] // self.heads

    @property
    def intermediate(self) -> int:
        return self.layers[0].down.shape[1]

    @property
    def norms(self) -> list[Tensor]:
        found = [self.norm, *(norm for layer in self.layers for norm in layer.norms)]
        return [norm for norm in found if norm is not None]

    @property
    def weights(self) -> list[Weight]:
        return [self.head, *(weight for layer in self.layers for weight in layer.weights)]


class Kernel:
    """The compiled function, for weights that it `supports` and one pool of KV."""

    def __init__(self, weights: DecoderWeights, k: Sequence[Tensor], v: Sequence[Tensor]) -> None:
        self._weights, self._pool = weights, (k, v)  # whose addresses the kernel is given
        vocabulary, hidden = weights.head.shape
        self._vocabulary = vocabulary
        self._layers = array("q")
        for layer, keys, values in zip(weights.layers, k, v, strict=True):
            self._layers.extend((*layer.addresses(), _address(keys), _address(values)))
        self._decoder = array("q", [self._layers.buffer_info()[0], _address(weights.norm)])
        self._decoder.extend(weights.head.addresses())
        self._decoder.extend(map(_address, (weights.cos, weights.sin)))
        sizes = (len(k), hidden, weights.heads, weights.kv_heads, weights.head_dim)
        self._decoder.extend((*sizes, weights.intermediate, vocabulary))
        self._large = sum(math.prod(x.shape) for x in weights.weights) >= MIN_PARALLEL

    def step(self, x: Tensor, positions: Tensor, runs: Tensor) -> Tensor:
        """Compute logits `[sequences, vocabulary]` from embeddings x `[sequences, hidden]`,
        which are overwritten, and write the new keys and values to the pool. `runs` are first
        row and number of rows, the new token's included, of every KV head `[layers, 2, sequences
        * kv_heads]` int64."""
        logits = x.new_empty(len(x), self._vocabulary)
        threads = torch.get_num_threads() if self._large else 1
        native.call(
            "decode_step",
            *(self._decoder, x, positions, runs, logits),
            *(len(x), self._weights.eps, self._weights.scale),
            *(native.has_bf16_dot(), threads),
        )
        return logits


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def kernel_for(
    weights: DecoderWeights | None, k: Sequence[Tensor], v: Sequence[Tensor]
) -> Kernel | None:
    """Return the kernel, if it is compiled and takes this model and pool."""
    taken = native.module() is not None and weights is not None and supports(weights, k, v)
    return Kernel(weights, k, v) if weights is not None and taken else None


def supports(weights: DecoderWeights, k: Sequence[Tensor], v: Sequence[Tensor]) -> bool:
    """Return whether the kernel can take this model and pool."""
    tensors = [*weights.norms, *k, *v]
    d, group = weights.head_dim, weights.heads // weights.kv_heads
    sizes = (weights.head.shape[1], weights.heads * d, weights.intermediate, d)
    return (
        all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in tensors)
        and all(x.is_contiguous() for x in (*tensors, weights.cos, weights.sin))
        and all(weight.is_for_kernels for weight in weights.weights)
        and weights.cos.dtype == weights.sin.dtype == torch.float32
        and all(size % LANES == 0 for size in sizes)
        and group <= MAX_GROUP
        and group * d <= MAX_STATE
    )


MAX_WIDTH = 1 << 13  # the same constants as in the C source


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


def supports_layer(weights: LayerWeights, heads: int) -> bool:
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
