"""Rendezvous hashing with bounded load: the home of a document that no worker holds.

Every worker has a weight for every name, and the heaviest is the name's home. If a worker goes,
only its names move. A worker that is busier than most is passed over.

Sources:
    Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996.
    Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2016.
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (the mixing).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

BOUND = 1.25  # a home's backlog is at most this many times the mean
SLACK_S = 0.05  # and this much besides, so that idle workers differ in nothing

Weights = npt.NDArray[np.uint64]


def ranked(name: bytes, workers: Iterable[int]) -> list[int]:
    """Return the workers, that with the largest weight for `name` first."""
    numbers = np.fromiter(workers, np.int64)
    order = np.argsort(_weights([name], numbers)[0])[::-1]
    return [int(number) for number in numbers[order]]


def home(name: bytes, backlogs: Mapping[int, float]) -> int:
    """Return the home of one name."""
    numbers = np.fromiter(backlogs, np.int64, count=len(backlogs))
    seconds = np.fromiter(backlogs.values(), np.float64, count=len(backlogs))
    return int(numbers[homes([name], numbers, seconds)[0]])


def homes(
    names: Sequence[bytes], numbers: npt.NDArray[np.int64], backlogs: npt.NDArray[np.float64]
) -> npt.NDArray[np.intp]:
    """Return the home of every name, as its place in `numbers`."""
    weights = _weights(names, numbers)
    weights[:, backlogs > BOUND * backlogs.mean() + SLACK_S] = 0
    places: npt.NDArray[np.intp] = weights.argmax(axis=1)
    return places


def _weights(names: Sequence[bytes], numbers: npt.NDArray[np.int64]) -> Weights:
    """Of every worker for every name `[names, workers]`: a hash of both, for all at once."""
    hashes = [int.from_bytes(blake2b(name, digest_size=8).digest(), "big") for name in names]
    of_workers = _mixed(numbers.astype(np.uint64) + np.uint64(1))
    return _mixed(np.array(hashes, np.uint64)[:, None] ^ of_workers)


def _mixed(values: Weights) -> Weights:
    """SplitMix64's output function: every bit of a number depends on all of the old ones."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
