"""Which way is faster on this processor, where that cannot be known from what it has: measured at
the first use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import thread_time
from timeit import timeit

log = logging.getLogger("kvstitch.worker")

# A kernel gives way to torch that is faster by this, in the best of so many turns of each, in
# processor seconds of the calling thread, which has its share of a product in several: two starts
# should choose the same, on a busy machine, too.
MARGIN, TURNS = 1.2, 8
_seconds = partial(timeit, timer=thread_time, number=1)

measured: dict[str, tuple[float, float]] = {}
"""Seconds of the kernel and of torch, by what was measured in this process."""


def is_fast(what: str, kernel: Callable[[], object], torchs: Callable[[], object]) -> bool:
    """Return whether the kernel is about as fast as torch, or faster."""
    if what not in measured:
        turns = [(_seconds(kernel), _seconds(torchs)) for _ in range(TURNS)]
        ours, others = map(min, zip(*turns, strict=True))
        log.info("%s: %.4f s by the kernel, %.4f s by torch", what, ours, others)
        measured[what] = ours, others
    ours, others = measured[what]
    return ours <= MARGIN * others
