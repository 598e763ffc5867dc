"""int8: symmetric quantisation with one fp16 scale per token and head.

`s` is the smallest fp16 number with `127 s >= max|x|` over the head's channels, `q = round(x / s)`,
`x^ = q s`. Rounding the scale up keeps every code inside [-127, 127], so

    |x - x^| <= s / 2 + eps,   eps = half a unit in the last place of the output dtype,

also where the scale is an fp16 subnormal. An all-zero row gets `s = 1` and is exact. Magnitudes
above 127 * 65504 do not fit an fp16 scale and are refused, as are NaN and infinity.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvstore.errors import ChunkSpecError
from kvstore.format.chunk_spec import ChunkSpec
from kvstore.format.codecs.base import EncodedPart, Role

_LEVELS = 127.0
_LARGEST = _LEVELS * torch.finfo(torch.float16).max


class Int8Codec:
    """Stores int8 codes and one fp16 scale per token and head."""

    name = "int8"

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        return (
            EncodedPart("", torch.int8, spec.shape),
            EncodedPart(".scale", torch.float16, (spec.tokens, spec.kv_heads)),
        )

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        wide = x.float()
        largest = wide.abs().amax(dim=-1)
        if not bool((largest <= _LARGEST).all()):  # also false for NaN
            raise ChunkSpecError(f"{role} holds NaN, infinity or magnitudes above {_LARGEST:g}")
        scale = _round_up_to_half(largest)
        quantised = (wide / scale.float().unsqueeze(-1)).round_()
        return quantised.to(torch.int8), scale

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        quantised, scale = stored
        return (quantised.float() * scale.float().unsqueeze(-1)).to(spec.torch_dtype)


def _round_up_to_half(largest: Tensor) -> Tensor:
    """The smallest fp16 scale that covers `largest` (float32, >= 0), or 1 where it is zero."""
    scale = (largest / _LEVELS).half()
    too_small = scale.float() * _LEVELS < largest
    # The next larger positive fp16 is the next larger bit pattern.
    scale = (scale.view(torch.int16) + too_small.to(torch.int16)).view(torch.float16)
    return torch.where(largest > 0, scale, torch.ones_like(scale))


CODEC = Int8Codec()
