"""What a killed process had done: for every key the contents that may be found afterwards.

It lives in memory shared with the parent. A byte is written before an operation begins and after it
was acknowledged, so at every moment it names everything that is allowed.
"""

from __future__ import annotations

import mmap

from tests.trials.store.contents import EXTRA_VERSIONS, VARIANTS

ABSENT = 1 << VARIANTS  # bit v: variant v may be found


class Journal:
    """Two bytes a key: allowed variants of its chunk, allowed versions of its extra tensors."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._bytes = mmap.mmap(-1, 2 * keys)
        self._bytes[:keys] = bytes([ABSENT]) * keys

    def chunk(self, number: int) -> int:
        return self._bytes[number]

    def allow(self, number: int, variant: int) -> None:
        self._bytes[number] |= 1 << variant

    def allow_absent(self, number: int) -> None:
        self._bytes[number] |= ABSENT

    def only(self, number: int, variant: int) -> None:
        self._bytes[number] = 1 << variant

    def gone(self, number: int) -> None:
        """The deletion was acknowledged: neither the chunk nor extra tensors may come back."""
        self._bytes[number] = ABSENT
        self._bytes[self._keys + number] = 0

    def allow_extra(self, number: int, version: int) -> None:
        self._bytes[self._keys + number] |= 1 << EXTRA_VERSIONS.index(version)

    def only_extra(self, number: int, version: int) -> None:
        self._bytes[self._keys + number] = 1 << EXTRA_VERSIONS.index(version)

    def check_chunk(self, number: int, variant: int | None, *, may_miss: bool) -> None:
        """Raises AssertionError if that must not be found now; None is a miss."""
        allowed = self._bytes[number] | (ABSENT if may_miss else 0)
        found = ABSENT if variant is None else 1 << variant
        what = "is gone" if variant is None else f"is variant {variant}"
        assert allowed & found, f"key {number} {what}, allowed are {allowed:b}"

    def check_extra(self, number: int, version: int) -> None:
        allowed = self._bytes[self._keys + number]
        found = 1 << EXTRA_VERSIONS.index(version)
        assert allowed & found, f"extra {version} of key {number} came back, allowed {allowed:b}"
