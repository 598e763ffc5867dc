"""Byte ranges of a chunk's data section."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from kvstore.format.buffers import view_bytes

ByteProgress = Callable[[int], None]
"""Called with the number of requested bytes that are in place; the number never falls."""


class ByteRange(NamedTuple):
    """Bytes `[start, end)` of the data section, all of one layer."""

    layer: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def total_bytes(ranges: Iterable[ByteRange]) -> int:
    return sum(end - start for _, start, end in ranges)


def coalesced(ranges: Iterable[ByteRange]) -> Iterator[tuple[int, int]]:
    """Join neighbouring ranges, also across layers; each `(start, end)` is one read of a file."""
    begun: tuple[int, int] | None = None
    for _, start, end in ranges:
        if begun is None:
            begun = start, end
        elif begun[1] == start:
            begun = begun[0], end
        else:
            yield begun
            begun = start, end
    if begun is not None:
        yield begun


def gather(
    data: Tensor, ranges: Sequence[ByteRange], target: Tensor, progress: ByteProgress | None = None
) -> None:
    """Copy the ranges of `data` one after the other into `target`; both are host uint8."""
    source, view = view_bytes(data), view_bytes(target)
    offset = 0
    for number, (layer, start, end) in enumerate(ranges):
        view[offset : offset + end - start] = source[start:end]
        offset += end - start
        if progress and (number + 1 == len(ranges) or ranges[number + 1].layer != layer):
            progress(offset)
