"""The process that is killed: puts, gets, deletes, evicts and starts again until it dies."""

from __future__ import annotations

import os
import random
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

from kvstitch.kvstore import MemoryTier, RedisTier, SsdTier, TieredStore
from kvstitch.kvstore.tiers.base import Tier
from tests.trials.store.contents import EXTRA, EXTRA_VERSIONS, VARIANTS, Entry
from tests.trials.store.journal import Journal
from tests.trials.store.kill_points import KillPoint

THREADS = 2  # each has keys of its own, so that it knows what it must find
_BAD = ("corrupt", "refused", "error", "timeout", "unavailable")
_WEIGHTS = {"put": 40, "get": 25, "delete": 14, "put_extra": 12, "get_extra": 8, "get_blocks": 8}


@dataclass(frozen=True)
class Place:
    """Directory and Redis of one store, and what it may hold.

    Attributes:
        name: for the report.
        root: directory of the SSD tier.
        capacity: its bound in bytes.
        roomy: nothing is ever evicted, so what was acknowledged must be found.
        redis_url: None for a store without Redis.
    """

    name: str
    root: Path
    capacity: int
    roomy: bool
    redis_url: str | None
    entries: list[Entry]
    journal: Journal

    def tiers(self) -> list[Tier]:
        tiers: list[Tier] = [MemoryTier(200_000), SsdTier(self.root, self.capacity)]
        if self.redis_url is not None:
            tiers.append(RedisTier(self.redis_url, timeout_s=10, deadline_s=30))
        return tiers


def live_until_killed(place: Place, seed: int, point: KillPoint | None) -> None:
    """Runs in a forked child and never returns."""
    try:
        if point is not None:
            point.arm()
        rng = random.Random(seed)
        while True:
            _one_life(place, rng)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(9)


def _one_life(place: Place, rng: random.Random) -> None:
    """Start the store, use it from several threads, close it; check that all went well."""
    errors: list[BaseException] = []
    with TieredStore(place.tiers()) as store:
        threads = [
            threading.Thread(target=_use, args=(place, store, rng.random(), own, errors))
            for own in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = store.stats()
    if errors:
        raise errors[0]
    for tier in stats.tiers:
        # Extra tensors of another version than was asked for are refused, and that is right.
        expected = ("read_extra", "refused")
        bad = {op: n for op, n in tier.ops.items() if n and op[1] in _BAD and op != expected}
        assert not bad, f"{tier.name} met {bad}, and nothing was damaged"


def _use(
    place: Place, store: TieredStore, seed: float, own: int, errors: list[BaseException]
) -> None:
    rng = random.Random(seed)
    operations = _Operations(place, store)
    try:
        for _ in range(rng.randint(20, 120)):
            number = rng.randrange(own, len(place.entries), THREADS)
            name = rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
            getattr(operations, name)(number, rng)
    except BaseException as error:
        errors.append(error)


class _Operations:
    """One operation on one key: what it allows goes to the journal first, what it did after."""

    def __init__(self, place: Place, store: TieredStore) -> None:
        self._place = place
        self._journal = place.journal
        self._store = store

    def put(self, number: int, rng: random.Random) -> None:
        entry, variant = self._place.entries[number], rng.randrange(VARIANTS)
        self._journal.allow(number, variant)
        if self._store.put(entry.key, entry.chunks[variant]) and self._place.redis_url is None:
            self._journal.only(number, variant)

    def get(self, number: int, rng: random.Random) -> None:
        entry = self._place.entries[number]
        outcome = self._store.read(entry.key, rng.choice([None, entry.chunks[0].spec]))
        assert outcome.problems == (), f"reading key {number}: {outcome.problems}"
        variant = entry.variant_of(outcome)
        self._journal.check_chunk(number, variant, may_miss=not self._place.roomy)

    def get_blocks(self, number: int, rng: random.Random) -> None:
        entry = self._place.entries[number]
        outcome = self._store.read_blocks(entry.key, {rng.randrange(3): [0]})
        assert outcome.problems == (), f"reading blocks of key {number}: {outcome.problems}"

    def delete(self, number: int, rng: random.Random) -> None:
        self._journal.allow_absent(number)
        deleted = self._store.delete([self._place.entries[number].key])
        assert set(deleted) == set(self._store.tier_names), f"only {deleted} could be asked"
        self._journal.gone(number)

    def put_extra(self, number: int, rng: random.Random) -> None:
        entry, version = self._place.entries[number], rng.choice(EXTRA_VERSIONS)
        self._journal.allow_extra(number, version)
        put = self._store.put_extra(entry.key, EXTRA, version, entry.extras[version])
        if put and self._place.roomy:
            self._journal.only_extra(number, version)

    def get_extra(self, number: int, rng: random.Random) -> None:
        entry, version = self._place.entries[number], rng.choice(EXTRA_VERSIONS)
        outcome = self._store.read_extra(entry.key, EXTRA, version)
        if outcome is not None:
            entry.check_extra(outcome, version)
            self._journal.check_extra(number, version)
