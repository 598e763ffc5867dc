"""Homes: spread evenly, stable, and never at a worker that is much busier than the others."""

from __future__ import annotations

from collections import Counter

from kvstitch.service.gateway.fleet.routing.router import BOUND, SLACK_S, home, ranked

NAMES = [number.to_bytes(16, "little") for number in range(4000)]


def homes(workers: range) -> dict[bytes, int]:
    return {name: home(name, dict.fromkeys(workers, 0.0)) for name in NAMES}


def test_names_are_spread_evenly() -> None:
    counts = Counter(homes(range(4)).values())
    assert all(900 < counts[worker] < 1100 for worker in range(4))


def test_a_new_worker_takes_its_share_and_nothing_else_moves() -> None:
    before, after = homes(range(4)), homes(range(5))
    moved = {name for name in NAMES if before[name] != after[name]}
    assert all(after[name] == 4 for name in moved)
    assert 650 < len(moved) < 950  # a fifth


def test_what_a_lost_worker_had_is_spread_over_the_others() -> None:
    lost = [name for name, worker in homes(range(4)).items() if worker == 2]
    counts = Counter(home(name, {0: 0.0, 1: 0.0, 3: 0.0}) for name in lost)
    assert set(counts) == {0, 1, 3} and min(counts.values()) > len(lost) / 5


def test_a_busy_worker_is_passed_over_for_the_next_in_rank() -> None:
    backlogs = {0: 0.2, 1: 5.0, 2: 0.1, 3: 0.3}
    for name in NAMES[:200]:
        expected = next(worker for worker in ranked(name, range(4)) if worker != 1)
        assert home(name, backlogs) == expected


def test_load_that_grows_by_what_is_placed_stays_bounded() -> None:
    backlogs = dict.fromkeys(range(4), 0.0)
    for number in range(2000):  # nine of ten ask for the same document
        name = NAMES[0] if number % 10 else NAMES[number]
        backlogs[home(name, backlogs)] += 0.01
        mean = sum(backlogs.values()) / 4
        assert max(backlogs.values()) <= BOUND * mean + SLACK_S + 0.01
