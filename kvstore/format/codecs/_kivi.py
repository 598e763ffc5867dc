"""The shared part of int4 and int2: KIVI's grouping, applied to a stored cache.

    k   per channel: one scale and minimum per (g consecutive tokens, head, channel)
    v   per token:   one scale and minimum per (token, head, g consecutive channels)

Keys have a few channels that are large for every token; values have none. Grouped like this, an
outlier spoils only its own channel or token. Differences to KIVI's decode cache: no tokens stay
unquantised (R = 0), keys are quantised before RoPE, and tokens or channels at the end that do not
fill a group form a smaller group. Bits per element: `bits + 32 / g` for 16-bit tensors, which is
5.0 and 3.0 at g = 32.

Source:
    KIVI, https://arxiv.org/abs/2402.02750
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstore.errors import ChunkSpecError
from kvstore.format.chunk_spec import ChunkSpec
from kvstore.format.codecs._group_quantisation import dequantise, pack, quantise, unpack
from kvstore.format.codecs.base import EncodedPart, Role

_TOKENS, _CHANNELS = 0, 2


@dataclass(frozen=True)
class KiviCodec:
    """Stores codes of `bits` bits, packed along the channels, with scales and minima beside them.

    Attributes:
        name: name of the codec, which is its file name.
        bits: 2 or 4.
        group: g, the size of a group. It divides 64, so no group of tokens spans two blocks.
    """

    name: str
    bits: int
    group: int = 32

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        packed_channels = -(-spec.head_dim * self.bits // 8)
        shape = [spec.tokens, spec.kv_heads, spec.head_dim]
        axis = _axis(role)
        shape[axis] = -(-shape[axis] // self.group)
        tokens_per_row = self.group if role == "k" else 1
        return (
            EncodedPart("", torch.uint8, (spec.tokens, spec.kv_heads, packed_channels)),
            EncodedPart(".scale", torch.bfloat16, tuple(shape), tokens_per_row),
            EncodedPart(".min", spec.torch_dtype, tuple(shape), tokens_per_row),
        )

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        try:
            codes, scale, minimum = quantise(x, _axis(role), self.group, self.bits)
        except ValueError as error:
            raise ChunkSpecError(f"{role} holds {error}") from error
        return pack(codes, self.bits), scale, minimum

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        packed, scale, minimum = stored
        codes = unpack(packed, self.bits, spec.head_dim)
        return dequantise(codes, scale, minimum, _axis(role), self.group)


def _axis(role: Role) -> int:
    return _TOKENS if role == "k" else _CHANNELS
