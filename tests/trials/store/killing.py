"""Rounds of kills: fork a writer, kill it, look at what it left."""

from __future__ import annotations

import os
import random
import select
import signal
from collections import Counter
from pathlib import Path

from kvstitch.kvstore import RedisTier, SsdTier, TieredStore
from tests.trials.store.contents import EXTRA, EXTRA_VERSIONS, make_entries
from tests.trials.store.journal import Journal
from tests.trials.store.kill_points import KillPoint
from tests.trials.store.writer import Place, live_until_killed

KEYS = 16
LONGEST_S = 0.12  # a writer that is not dead by then is killed where it is
NAMED_POINTS = 0.75  # share of the writers that kill themselves at a named point


def kill_writers(folder: Path, redis_url: str | None, kills: int, seed: int) -> Counter[str]:
    """Kill that many writers; the number of kills by moment.

    Raises:
        AssertionError: something was found that nobody put there, or was lost, or came back.
    """
    rng = random.Random(seed)
    places = [
        _place(folder, "roomy", 1 << 30, None),
        _place(folder, "tight", 1_200_000, None),
    ]
    if redis_url is not None:
        places.append(_place(folder, "redis", 1_200_000, redis_url))
    counts: Counter[str] = Counter()
    for number in range(kills):
        place = rng.choice(places)
        point = None
        if rng.random() < NAMED_POINTS:
            point = KillPoint.draw(rng, redis=place.redis_url is not None)
        step = f"seed {seed}, kill {number}, {place.name}, {point}"
        at_point = _kill_one(place, rng.random(), rng.uniform(0, LONGEST_S), point, step)
        moment = f"{point.when} {point.name}" if point and at_point else "any moment"
        counts[moment] += 1
        counts["kills"] += 1
        try:
            _check_disk(place)
            if place.redis_url is not None:
                _check_redis(place)
        except Exception as error:
            raise AssertionError(f"{step}: {error}") from error
    return counts


def _place(folder: Path, name: str, capacity: int, redis_url: str | None) -> Place:
    entries = make_entries(KEYS)
    roomy = name == "roomy"
    return Place(name, folder / name, capacity, roomy, redis_url, entries, Journal(KEYS))


def _kill_one(
    place: Place, seed: float, after_s: float, point: KillPoint | None, step: str
) -> bool:
    """Fork a writer and see it die of SIGKILL; whether it died at the named point."""
    child = os.fork()
    if child == 0:
        live_until_killed(place, int(seed * 2**32), point)
    waiter = select.poll()
    fd = os.pidfd_open(child)
    try:
        waiter.register(fd, select.POLLIN)
        limit_s = 2 * LONGEST_S if point else after_s
        died = bool(waiter.poll(1000 * limit_s))
        if not died:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(fd)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed, f"{step}: the writer ended by itself with status {status}: see above"
    return died


def _check_disk(place: Place) -> None:
    """The directory opens, holds whole chunks only, and each is what its key may have."""
    tier = SsdTier(place.root, place.capacity)
    with TieredStore([tier]) as store:
        assert tier.scan.removed_unreadable == tier.scan.removed_refused == 0, tier.scan
        assert tier.scan.foreign == [], tier.scan
        _check_books(tier, place)
        for number, entry in enumerate(place.entries):
            outcome = store.read(entry.key)
            assert outcome.problems == (), f"key {number}: {outcome.problems}"
            variant = entry.variant_of(outcome)
            place.journal.check_chunk(number, variant, may_miss=not place.roomy)
            _check_extras(place, store, number)
        _check_books(tier, place)


def _check_extras(place: Place, store: TieredStore, number: int) -> None:
    entry = place.entries[number]
    for version in EXTRA_VERSIONS:
        extra = store.read_extra(entry.key, EXTRA, version)
        if extra is not None:
            entry.check_extra(extra, version)
            place.journal.check_extra(number, version)


def _check_books(tier: SsdTier, place: Place) -> None:
    """What the tier says it holds is what is on disk, and no more than it may be."""
    files = [path for path in place.root.rglob("*") if path.is_file() and path.name != ".lock"]
    on_disk = sum(path.stat().st_size for path in files)
    usage = tier.usage()
    assert usage.used_bytes == on_disk, f"{usage.used_bytes} bytes in the books, {on_disk} on disk"
    assert on_disk <= place.capacity, f"{on_disk} bytes on disk, {place.capacity} allowed"
    temporary = [path for path in files if path.parent.name == "tmp"]
    assert not temporary, f"left behind: {temporary}"


def _check_redis(place: Place) -> None:
    """A chunk in Redis is whole or absent; what was deleted is gone."""
    assert place.redis_url is not None
    with TieredStore([RedisTier(place.redis_url, timeout_s=10, deadline_s=30)]) as store:
        for number, entry in enumerate(place.entries):
            outcome = store.read(entry.key)
            assert outcome.problems == (), f"key {number} in Redis: {outcome.problems}"
            place.journal.check_chunk(number, entry.variant_of(outcome), may_miss=True)
            _check_extras(place, store, number)
