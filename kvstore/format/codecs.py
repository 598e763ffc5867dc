"""Codecs, which turn tensors into the tensors that are stored.

raw     the unchanged tensors
int8    symmetric, one fp16 scale per token and head (`Int8Codec`)
int4    KIVI's grouping with 16 levels: 5 bits per element, 3.2 times smaller than bf16
int2    the same with 4 levels: 3 bits per element, 5.3 times smaller than bf16; the authors of
        KIVI recommend 4 bits for models with grouped-query attention
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from kvstore.errors import ChunkSpecError
from kvstore.format.chunk_identity import ChunkSpec
from kvstore.format.group_quantisation import dequantise, pack, quantise, unpack

Role = Literal["k", "v"]

_TOKENS, _CHANNELS = 0, 2  # axes of `[tokens, kv_heads, head_dim]`
_INT8_LEVELS = 127.0
_INT8_LARGEST = _INT8_LEVELS * torch.finfo(torch.float16).max


@dataclass(frozen=True)
class EncodedPart:
    """One stored tensor of one layer's k or v."""

    suffix: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    tokens_per_row: int = 1


class Codec(Protocol):
    """Turns one layer's k or v into parts and back, on the device of the tensors."""

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        """Describe the stored tensors, the main one first."""
        ...

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        """Encode `x` `[tokens, kv_heads, head_dim]` into tensors that match `parts`."""
        ...

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        """Decode the stored tensors into `[tokens, kv_heads, head_dim]` of `spec.torch_dtype`."""
        ...


class RawCodec:
    """Stores the tensor itself. Decoding gives a view of the stored bytes: never write into it."""

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        return (EncodedPart("", spec.torch_dtype, spec.shape),)

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        return (x,)

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        return stored[0]


class Int8Codec:
    """Stores int8 codes and one fp16 scale per token and head."""

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        return (
            EncodedPart("", torch.int8, spec.shape),
            EncodedPart(".scale", torch.float16, (spec.tokens, spec.kv_heads)),
        )

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        wide = x.float()
        largest = wide.abs().amax(dim=-1)
        if not bool((largest <= _INT8_LARGEST).all()):  # also false for NaN
            raise ChunkSpecError(
                f"{role} holds NaN, infinity or magnitudes above {_INT8_LARGEST:g}"
            )
        scale = _round_up_to_half(largest)
        quantised = (wide / scale.float().unsqueeze(-1)).round_()
        return quantised.to(torch.int8), scale

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        quantised, scale = stored
        return (quantised.float() * scale.float().unsqueeze(-1)).to(spec.torch_dtype)


@dataclass(frozen=True)
class KiviCodec:
    """Stores codes of `bits` bits, packed along the channels, with scales and minima beside them.

    Source:
        KIVI, https://arxiv.org/abs/2402.02750
    """

    bits: int
    group: int = 32

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        packed_channels = -(-spec.head_dim * self.bits // 8)
        shape = [spec.tokens, spec.kv_heads, spec.head_dim]
        axis = _group_axis(role)
        shape[axis] = -(-shape[axis] // self.group)
        tokens_per_row = self.group if role == "k" else 1
        return (
            EncodedPart("", torch.uint8, (spec.tokens, spec.kv_heads, packed_channels)),
            EncodedPart(".scale", torch.bfloat16, tuple(shape), tokens_per_row),
            EncodedPart(".min", spec.torch_dtype, tuple(shape), tokens_per_row),
        )

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        try:
            codes, scale, minimum = quantise(x, _group_axis(role), self.group, self.bits)
        except ValueError as error:
            raise ChunkSpecError(f"{role} holds {error}") from error
        return pack(codes, self.bits), scale, minimum

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        packed, scale, minimum = stored
        codes = unpack(packed, self.bits, spec.head_dim)
        return dequantise(codes, scale, minimum, _group_axis(role), self.group)


_CODECS: dict[str, Codec] = {
    "int2": KiviCodec(bits=2),
    "int4": KiviCodec(bits=4),
    "int8": Int8Codec(),
    "raw": RawCodec(),
}


def codec_names() -> tuple[str, ...]:
    """Return the names of all codecs, sorted."""
    return tuple(_CODECS)


def codec(name: str) -> Codec:
    """Return the codec of that name."""
    if name not in _CODECS:
        raise ChunkSpecError(f"unknown codec {name!r}: one of {', '.join(_CODECS)}")
    return _CODECS[name]


def _group_axis(role: Role) -> int:
    return _TOKENS if role == "k" else _CHANNELS


def _round_up_to_half(largest: Tensor) -> Tensor:
    """Return the smallest fp16 scale that covers `largest` (float32, >= 0), or 1 where it is 0."""
    scale = (largest / _INT8_LEVELS).half()
    too_small = scale.float() * _INT8_LEVELS < largest
    # The next larger positive fp16 is the next larger bit pattern.
    scale = (scale.view(torch.int16) + too_small.to(torch.int16)).view(torch.float16)
    return torch.where(largest > 0, scale, torch.ones_like(scale))
