"""Rendezvous hashing with bounded load: the home of a document that no worker holds.

Every worker has a weight for every name, and the heaviest is the name's home. If a worker goes,
only its names move. A worker that is busier than most is passed over.

Sources:
    Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996.
    Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

BOUND = 1.25  # a home's backlog is at most this many times the mean
SLACK_S = 0.05  # and this much besides, so that idle workers differ in nothing


def ranked(name: bytes, workers: Iterable[int]) -> list[int]:
    """The workers, that with the largest weight for `name` first."""
    return sorted(workers, key=lambda worker: _weight(name, worker), reverse=True)


def home(name: bytes, backlogs: Mapping[int, float]) -> int:
    """The home of a name.

    Args:
        backlogs: seconds of work that each worker has.
    """
    bound = BOUND * sum(backlogs.values()) / len(backlogs) + SLACK_S
    return next(worker for worker in ranked(name, backlogs) if backlogs[worker] <= bound)


def _weight(name: bytes, worker: int) -> bytes:
    return blake2b(name, digest_size=8, key=worker.to_bytes(4, "big")).digest()
