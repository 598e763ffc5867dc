"""What recordings of layers are for: how many rows of which layers, cut into groups of layers.

This knows nothing of tensors, nor of how anything is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.worker.forward.transfers import GROUPS

MAX_ROWS = 3072
"""More rows are computed in several tiles, and take far longer to compute than to launch."""
FEW_ROWS = 512
"""Up to here rows cost less than launches, and recordings are for coarser numbers of them."""
MIN_KEYS = 2048
"""Smallest number of keys that is recorded for; larger ones are powers of two."""


@dataclass(frozen=True)
class Shape:
    """What a recording is for."""

    rows: int
    first: int
    stop: int
    keys: int
    scored: range = range(0)
    every: bool = False
    from_attention: bool = False
    shifted: bool = False
    answers: bool = False
    copied_from: int = 0

    @property
    def groups(self) -> list[range]:
        """The layers that are replayed at once."""
        start = max(self.first + self.from_attention, self.copied_from)
        ends = [group.stop for group in layer_groups(self.copied_from, self.stop)]
        ends = [end for end in ends if end > start] or [self.stop]
        return [
            range(first, end) for first, end in zip([self.first, *ends[:-1]], ends, strict=True)
        ]

    def is_finished(self, layer: int) -> bool:
        """Return whether a layer is computed to its end, and not only to its scores."""
        return not len(self.scored) or layer + 1 < self.stop


def bucket(rows: int) -> int | None:
    """Return how many rows are computed instead of so many: 8, 10, 12, 14, 16, 20, 24, ..."""
    if rows > MAX_ROWS:
        return None
    steps = 3 if rows <= FEW_ROWS else 5
    step = max(2, 1 << (max(rows, 1) - 1).bit_length() >> steps)
    padded = max(8, -(-rows // step) * step)
    return None if 3 * padded > 4 * rows else padded


def key_bucket(tokens: int) -> int:
    """Return how many keys are recorded for instead of so many."""
    return max(MIN_KEYS, 1 << (tokens - 1).bit_length())


def layer_groups(first: int, stop: int) -> list[range]:
    """Cut layers as they are copied to the device, if all have arrived."""
    groups: list[range] = []
    while first < stop:
        size = GROUPS[min(len(groups), len(GROUPS) - 1)]
        groups.append(range(first, min(first + size, stop)))
        first += size
    return groups
