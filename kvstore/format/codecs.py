"""Codecs, which turn tensors into the tensors that are stored.

raw     the unchanged tensors
int8    symmetric, one fp16 scale per token and head (`Int8Codec`)
int4    KIVI's grouping with 16 levels: 5 bits per element, 3.2 times smaller than bf16
int2    the same with 4 levels: 3 bits per element, 5.3 times smaller than bf16; the authors of
        KIVI recommend 4 bits for models with grouped-query attention
k8v8    keys of a channel in groups of 64 tokens with 256 levels, values as int8: 8.4 bits per
        element, 1.9 times smaller than bf16. In a few channels keys are far larger than in all
        others, and the scales of int8, of a token each, follow these
k8v4    the same keys, values as int4: 6.75 bits per element, 2.4 times smaller than bf16

All but int8 are asymmetric:

    s = (max - min) / (2^bits - 1),  q = round((x - min) / s) in [0, 2^bits - 1],  x^ = q s + min

The minimum is stored in the dtype of `x`. It is one of the values, so it is exact, a constant group
is exact, and no magnitude is too large. The scale is stored in bfloat16, which has the range of
float32; float16 would overflow above 65504 and lose groups narrower than 1e-6. The scale's 8
significant bits cost at most 0.4 % of a step, and `q s` is exact in float32. For 16-bit tensors,
scale and minimum together take 32 bits per group, as in KIVI.

Source:
    KIVI, https://arxiv.org/abs/2402.02750
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from kvstitch.kvstore.errors import ChunkSpecError
from kvstitch.kvstore.format.chunk_identity import ChunkSpec

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

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        """Encode `x` `[tokens, kv_heads, head_dim]` into tensors that match `parts`."""

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        """Decode the stored tensors into `[tokens, kv_heads, head_dim]` of `spec.torch_dtype`."""


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
    """Stores codes of `bits` bits, packed along the channels, and scales and minima beside them.
    `group` divides BLOCK_TOKENS, so that blocks can be read by themselves."""

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


@dataclass(frozen=True)
class MixedCodec:
    """Stores keys as one codec does and values as another."""

    keys: Codec
    values: Codec

    def _of(self, role: Role) -> Codec:
        return self.keys if role == "k" else self.values

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        return self._of(role).parts(role, spec)

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        return self._of(role).encode(role, x)

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        return self._of(role).decode(role, stored, spec)


CODECS: dict[str, Codec] = {
    "int2": KiviCodec(bits=2),
    "int4": KiviCodec(bits=4),
    "int8": Int8Codec(),
    "k8v4": MixedCodec(KiviCodec(bits=8, group=64), KiviCodec(bits=4)),
    "k8v8": MixedCodec(KiviCodec(bits=8, group=64), Int8Codec()),
    "raw": RawCodec(),
}


def codec(name: str) -> Codec:
    if name not in CODECS:
        raise ChunkSpecError(f"unknown codec {name!r}: one of {', '.join(CODECS)}")
    return CODECS[name]


def _group_axis(role: Role) -> int:
    return _TOKENS if role == "k" else _CHANNELS


def _round_up_to_half(largest: Tensor) -> Tensor:
    """Return the smallest fp16 scale that covers `largest` (float32, >= 0), or 1 where it is 0."""
    scale = (largest / _INT8_LEVELS).half()
    too_small = scale.float() * _INT8_LEVELS < largest
    # The next larger positive fp16 is the next larger bit pattern.
    scale = (scale.view(torch.int16) + too_small.to(torch.int16)).view(torch.float16)
    return torch.where(largest > 0, scale, torch.ones_like(scale))


def quantise(x: Tensor, axis: int, group: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise `x` (any float dtype) in groups of `group` neighbours along `axis`."""
    levels = 2**bits - 1
    length = x.shape[axis]
    grouped = _split_groups(x, axis, group).float()
    low, high = grouped.amin(axis + 1), grouped.amax(axis + 1)
    if not bool((high - low).isfinite().all()):  # NaN and infinity give NaN or infinity here
        raise ValueError("NaN, infinity or a range above float32's")
    scale = _scale(low, high, levels, x.dtype)
    steps = (grouped - low.unsqueeze(axis + 1)) / scale.float().unsqueeze(axis + 1)
    codes = steps.round_().clamp_(0, levels).to(torch.uint8).flatten(axis, axis + 1)
    return codes.narrow(axis, 0, length), scale, low.to(x.dtype)


def dequantise(codes: Tensor, scale: Tensor, minimum: Tensor, axis: int, group: int) -> Tensor:
    """Compute `q s + min` in float32 and cast once to the dtype of `minimum`."""
    length = codes.shape[axis]
    grouped = _split_groups(codes, axis, group).float()
    grouped.mul_(scale.float().unsqueeze(axis + 1)).add_(minimum.float().unsqueeze(axis + 1))
    return grouped.to(minimum.dtype).flatten(axis, axis + 1).narrow(axis, 0, length)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack uint8 codes `[..., n]` below `2^bits` into bytes `[..., ceil(n * bits / 8)]`."""
    per_byte = 8 // bits
    short = -codes.shape[-1] % per_byte
    padded = torch.nn.functional.pad(codes, (0, short))
    packed = padded[..., ::per_byte].clone()
    for place in range(1, per_byte):
        packed |= padded[..., place::per_byte] << (place * bits)
    return packed


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """Unpack bytes into uint8 codes `[..., length]`; the inverse of `pack`."""
    mask = 2**bits - 1
    places = [(packed >> shift) & mask for shift in range(0, 8, bits)]
    return torch.stack(places, dim=-1).flatten(-2)[..., :length]


def _scale(low: Tensor, high: Tensor, levels: int, dtype: torch.dtype) -> Tensor:
    """Return the stored scale of groups that span `[low, high]` (float32), as bfloat16."""
    scale = ((high - low) / levels).bfloat16()
    top = (low + levels * scale.float()).to(dtype)
    # Rounding up may push the largest value beyond the dtype's range: take the next smaller scale.
    scale = (scale.view(torch.int16) - top.isinf().to(torch.int16)).view(torch.bfloat16)
    top = (low + levels * scale.float()).to(dtype)
    # `top` is the value that the largest input decodes to. Computing the scale from it makes
    # encoding stable: a chunk that was decoded and is encoded again keeps scale, minimum, values.
    scale = ((top.float() - low) / levels).bfloat16()
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _split_groups(x: Tensor, axis: int, group: int) -> Tensor:
    """Split `axis` into `[groups, group]`; a short last group is padded with its last entry."""
    length = x.shape[axis]
    groups = -(-length // group)
    if short := groups * group - length:
        shape = list(x.shape)
        shape[axis] = short
        x = torch.cat([x, x.narrow(axis, length - 1, 1).expand(shape)], dim=axis)
    return x.reshape(*x.shape[:axis], groups, group, *x.shape[axis + 1 :])
