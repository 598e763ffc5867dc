"""One decode step through all layers in one call, on a CPU in bfloat16 or with quantised weights.

Called one by one, the operations of a small model take longer to start than to compute: with 30
layers of width 576 the calls alone took 8 ms of a step's 29 on two cores. The kernel
(`src/decode_step.c`) wakes the threads once a step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.kernels.cpu import native
from service.worker.kernels.cpu.weight import Weight

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
        """All of its norms."""
        found = [self.norm, *(norm for layer in self.layers for norm in layer.norms)]
        return [norm for norm in found if norm is not None]

    @property
    def weights(self) -> list[Weight]:
        """All that it multiplies by."""
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
