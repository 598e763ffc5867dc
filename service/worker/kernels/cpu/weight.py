"""A weight as kernels read it: in bfloat16, or as int8 or int4 with scales.

int8 has a scale for each row. int4 has one for each GROUP columns of a row, and two values in a
byte: of a group, columns 0..15 in the lower halves of its 16 bytes, columns 16..31 in the upper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.kvstore.format.buffers import allocate
from kvstitch.service.worker.kernels.cpu import native

GROUP = 32
"""Columns with one scale in int4: LANES of the C source."""
LEVELS = {8: 127, 4: 8}
"""The largest magnitude by bits; int4 has it with a minus only."""
GROUPS_AT_ONCE = 1 << 13
"""Groups that are quantised at a time: 1 MiB in fp32."""
TILE = 1 << 20
"""Values that are dequantised at a time: 2 MB in bfloat16."""
# A huge page has 2 MiB; in smaller tensors most of it would be unused.
MIN_HUGE_BYTES = 4 << 20


@dataclass(frozen=True)
class Weight:
    """A weight `[out, in]`."""

    values: Tensor  # `[out, in]`, int8 where quantised to 8 bits; to 4, uint8 `[out, in / 2]`
    # fp32, `[out]` for 8 bits, `[out, in / GROUP]` for 4; None where not quantised
    scales: Tensor | None = None
    bias: Tensor | None = None  # `[out]`, or None

    @property
    def bits(self) -> int:
        """16 for what is not quantised, whatever its dtype is."""
        return 16 if self.scales is None else 8 if self.values.dtype == torch.int8 else 4

    @property
    def shape(self) -> tuple[int, int]:
        outs, columns = self.values.shape
        return outs, columns * 2 if self.bits == 4 else columns

    @property
    def is_for_kernels(self) -> bool:
        """Whether dtypes, device and strides are what the kernels take."""
        tensors = [x for x in (self.values, self.scales, self.bias) if x is not None]
        return (
            (self.bits < 16 or self.values.dtype == torch.bfloat16)
            and (self.bias is None or self.bias.dtype == torch.bfloat16)
            and all(x.device.type == "cpu" and x.is_contiguous() for x in tensors)
        )

    def addresses(self) -> tuple[int, int, int, int]:
        """Return the C `struct weight`."""
        values, bias, scales = (
            0 if x is None else x.data_ptr() for x in (self.values, self.bias, self.scales)
        )
        return values, bias, scales, self.bits

    def columns(self, part: slice) -> Weight:
        """Return some of its columns; of int4, whole groups."""
        if self.bits != 4 or self.scales is None or part == slice(None):
            return Weight(self.values[:, part], self.scales, self.bias)
        halves, groups = (slice(part.start // n, part.stop // n) for n in (2, GROUP))
        return Weight(self.values[:, halves], self.scales[:, groups], self.bias)

    def rows(self, part: slice | Tensor) -> Weight:
        """Return some of its rows, by a slice or by numbers."""
        scales, bias = (None if x is None else x[part] for x in (self.scales, self.bias))
        return Weight(self.values[part], scales, bias)

    def tiles(self) -> Iterator[tuple[slice, Weight]]:
        """Return parts of about TILE values, and which rows each is."""
        outs, columns = self.shape
        step = max(TILE // columns // GROUP, 1) * GROUP
        for a in range(0, outs, step):
            part = slice(a, min(a + step, outs))
            yield part, self.rows(part)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """`[out, in]`, rounded once."""
        if self.scales is None:
            return self.values.to(dtype)
        by_kernel = dtype == torch.bfloat16 and self.is_for_kernels and self.shape[1] % GROUP == 0
        if by_kernel and native.module() is not None:
            out = torch.empty(self.shape, dtype=dtype)
            sizes, threads = self.shape, torch.get_num_threads()
            native.call("dequantise", self.values, self.scales, out, *sizes, self.bits, threads)
            return out
        if self.bits == 8:
            return (self.values.float() * self.scales[:, None]).to(dtype)
        pairs = self.values.view(*self.scales.shape, 1, GROUP // 2)
        levels = self.scales.new_empty(*self.scales.shape, 2, GROUP // 2)
        levels[:, :, :1], levels[:, :, 1:] = pairs & 15, pairs >> 4
        levels = levels.sub_(LEVELS[4]).mul_(self.scales[..., None, None])
        return levels.view(self.shape).to(dtype)


def quantised(weight: Tensor, bits: int) -> Weight:
    """Round a weight `[out, in]` to 8 or 4 bits, to the nearest level; for 4, `in` is a multiple
    of GROUP, and of some scales for each group the one with the least squared error is taken. For
    16 it stays as it is."""
    if bits == 16:
        return Weight(weight)  # the parameter itself, which an embedding may share
    wide = weight.detach().float()
    if bits == 8:
        scales = (wide.abs().amax(1) / LEVELS[8]).clamp_min(torch.finfo(torch.float32).tiny)
        return Weight((wide / scales[:, None]).round_().to(torch.int8), scales)
    found = [_best_levels(part) for part in torch.split(wide.view(-1, GROUP), GROUPS_AT_ONCE)]
    levels, scales = (torch.cat(parts) for parts in zip(*found, strict=True))
    low, high = levels.add_(LEVELS[4]).to(torch.uint8).chunk(2, dim=-1)
    return Weight((low | high << 4).view(len(wide), -1), scales.view(len(wide), -1))


def _best_levels(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Of groups `[n, GROUP]`, levels -8..7 in fp32, and scales `[n, 1]`."""
    largest = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    # The largest magnitude as level -8, and somewhat less or more than that. With what is less,
    # the largest value is cut off, and all others are rounded more finely.
    scales = largest / -(LEVELS[4] - 0.125 * torch.arange(-4, 13, device=groups.device))
    scales = torch.where(scales == 0, 1.0, scales)
    errors, off = torch.empty_like(scales), torch.empty_like(groups)
    for i, scale in enumerate(torch.split(scales, 1, dim=1)):
        torch.div(groups, scale, out=off).round_().clamp_(-LEVELS[4], LEVELS[4] - 1)
        errors[:, i] = off.mul_(scale).sub_(groups).square_().sum(1)
    best = scales.gather(1, errors.argmin(1, keepdim=True))
    return (groups / best).round_().clamp_(-LEVELS[4], LEVELS[4] - 1), best


def zeros_in_huge_pages(
    shape: Sequence[int], *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """`torch.zeros`, in huge pages if the tensor is large, on a CPU, and the system has them:
    what is read from end to end again and again is prefetched up to the end of a page."""
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or nbytes < MIN_HUGE_BYTES:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return allocate(nbytes).view(dtype).view(tuple(shape))  # fresh pages are zeros
