"""Asymmetric min/max quantisation of groups, and packing of small codes into bytes.

    s = (max - min) / (2^bits - 1),   q = round((x - min) / s) in [0, 2^bits - 1],   x^ = q s + min

The minimum is stored in the dtype of `x`. It is one of the values, so it is exact, a constant group
is exact, and no magnitude is too large. The scale is stored in bfloat16, which has the range of
float32; float16 would overflow above 65504 and lose groups narrower than 1e-6. The scale's 8
significant bits cost at most 0.4 % of a step, and `q s` is exact in float32. For 16-bit tensors,
scale and minimum together take 32 bits per group, as in KIVI.

Source:
    KIVI, https://arxiv.org/abs/2402.02750
"""

import torch
from torch import Tensor


def quantise(x: Tensor, axis: int, group: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise `x` (any float dtype) in groups of `group` neighbours along `axis`."""
    levels = 2**bits - 1
    length = x.shape[axis]
    grouped = _grouped(x, axis, group).float()
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
    grouped = _grouped(codes, axis, group).float()
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


def _grouped(x: Tensor, axis: int, group: int) -> Tensor:
    """Split `axis` into `[groups, group]`; a short last group is padded with its last entry."""
    length = x.shape[axis]
    groups = -(-length // group)
    if short := groups * group - length:
        shape = list(x.shape)
        shape[axis] = short
        x = torch.cat([x, x.narrow(axis, length - 1, 1).expand(shape)], dim=axis)
    return x.reshape(*x.shape[:axis], groups, group, *x.shape[axis + 1 :])
