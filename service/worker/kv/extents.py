"""Bookkeeping of one layer's KV pool: contiguous extents of rows, best fit, merged when freed.

A row is one token of one KV head. Sequences own few large extents, so attention reads them as plain
strided tensors, and sequences of unequal lengths waste nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class ExtentAllocator:
    """Allocates extents `[start, start + size)` of the rows `[0, capacity)`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free_rows = capacity
        self._starts: list[int] = [0] if capacity else []
        self._sizes: dict[int, int] = {0: capacity} if capacity else {}

    @property
    def largest(self) -> int:
        """Size of the largest free extent, in rows: the most that one allocation can get."""
        return max(self._sizes.values(), default=0)

    def allocate(self, size: int) -> int | None:
        """Take `size` rows from the smallest free extent that has them; its start, or None."""
        holes = [(have, start) for start, have in self._sizes.items() if have >= size]
        if not holes or size <= 0:
            return None
        have, start = min(holes)
        self._remove(start)
        if have > size:
            self._insert(start + size, have - size)
        self.free_rows -= size
        return start

    def free(self, start: int, size: int) -> None:
        """Give an extent, or any part of one, back."""
        if size <= 0:
            return
        self.free_rows += size
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            following = self._starts[at]
            size += self._sizes[following]
            self._remove(following)
        if at > 0:
            before = self._starts[at - 1]
            if before + self._sizes[before] == start:
                size += self._sizes[before]
                self._remove(before)
                start = before
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        insort(self._starts, start)
        self._sizes[start] = size

    def _remove(self, start: int) -> None:
        del self._starts[bisect_left(self._starts, start)]
        del self._sizes[start]
