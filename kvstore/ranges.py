"""Byte ranges of a chunk's data section. Knows no tensor's place and no tier."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from kvstore.buffers import allocate, view_bytes


class ByteRange(NamedTuple):
    """Bytes ``[start, end)`` of the data section, all of one layer."""

    layer: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def total_bytes(ranges: Iterable[ByteRange]) -> int:
    return sum(end - start for _, start, end in ranges)


def runs(ranges: Iterable[ByteRange]) -> Iterator[tuple[int, int]]:
    """Neighbours joined, across layers too: each ``(start, end)`` is one read of a file."""
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


def gather(data: Tensor, ranges: Sequence[ByteRange]) -> Tensor:
    """Copy the ranges of ``data`` (host uint8) one after the other; pinned where ``data`` is."""
    target = allocate(total_bytes(ranges), pin=data.is_pinned())
    source, view = view_bytes(data), view_bytes(target)
    offset = 0
    for start, end in runs(ranges):
        view[offset : offset + end - start] = source[start:end]
        offset += end - start
    return target
