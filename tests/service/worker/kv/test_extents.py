"""ExtentAllocator against a bitmap."""

from __future__ import annotations

import random

import pytest

from kvstitch.service.worker.kv.extents import ExtentAllocator


class Bitmap:
    """The obvious model: one bool per row."""

    def __init__(self, capacity: int) -> None:
        self.used = [False] * capacity

    def holes(self) -> list[tuple[int, int]]:
        """(start, size) of every maximal free run."""
        out, start = [], None
        for i, used in enumerate([*self.used, True]):
            if not used and start is None:
                start = i
            if used and start is not None:
                out.append((start, i - start))
                start = None
        return out

    def mark(self, start: int, size: int, used: bool) -> None:
        for i in range(start, start + size):
            assert self.used[i] is not used, f"row {i} was {'used' if used else 'free'} already"
            self.used[i] = used


def check(allocator: ExtentAllocator, bitmap: Bitmap) -> None:
    holes = bitmap.holes()
    assert allocator.free_rows == sum(size for _, size in holes)
    assert allocator.largest == max((size for _, size in holes), default=0)


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(seed: int) -> None:
    """Allocate, free whole extents, free parts of them: the same free rows and the same largest
    hole as the bitmap (so everything is coalesced), tightest hole first, no overlap."""
    draw = random.Random(seed)
    capacity = draw.choice([1, 7, 64, 300])
    allocator, bitmap = ExtentAllocator(capacity), Bitmap(capacity)
    held: list[tuple[int, int]] = []
    for _ in range(400):
        if held and draw.random() < 0.5:
            start, size = held.pop(draw.randrange(len(held)))
            cut = draw.randint(0, size)
            part = draw.choice([(start, size), (start, cut), (start + cut, size - cut)])
            allocator.free(*part)
            bitmap.mark(*part, used=False)
            before, after = part[0] - start, start + size - part[0] - part[1]
            held += [(start, before)] * (before > 0)
            held += [(part[0] + part[1], after)] * (after > 0)
        else:
            size = draw.randint(1, max(1, capacity // 3))
            fitting = [have for _, have in bitmap.holes() if have >= size]
            given = allocator.allocate(size)
            assert (given is None) == (not fitting)
            if given is not None:
                hole = next(have for at, have in bitmap.holes() if at <= given < at + have)
                assert hole == min(fitting)
                bitmap.mark(given, size, used=True)
                held.append((given, size))
        check(allocator, bitmap)
    for start, size in held:
        allocator.free(start, size)
    assert allocator.largest == allocator.free_rows == capacity


def test_fragmentation_refuses_what_is_free_in_pieces() -> None:
    allocator = ExtentAllocator(10)
    starts = [allocator.allocate(2) for _ in range(5)]
    for start in (starts[1], starts[3]):
        assert start is not None
        allocator.free(start, 2)
    assert allocator.free_rows == 4
    assert allocator.largest == 2
    assert allocator.allocate(3) is None
    assert allocator.free_rows == 4
    assert starts[2] is not None
    allocator.free(starts[2], 2)  # joins both its neighbours
    assert allocator.largest == 6
    assert allocator.allocate(6) == starts[1]


def test_nothing_of_nothing() -> None:
    allocator = ExtentAllocator(0)
    assert allocator.allocate(1) is None
    assert allocator.largest == 0
    full = ExtentAllocator(4)
    assert full.allocate(0) is None
    assert full.allocate(-1) is None
    full.free(0, 0)
    assert full.free_rows == 4
