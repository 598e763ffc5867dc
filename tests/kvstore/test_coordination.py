import threading
import time

import pytest

from kvstitch.kvstore.coordination import DeletionEpoch, SingleFlight


def test_overlapping_calls_share_one_result():
    flights: SingleFlight[str, int] = SingleFlight()
    gate = threading.Event()
    runs: list[int] = []
    results: list[tuple[int, bool]] = []

    def work() -> int:
        runs.append(1)
        gate.wait()
        return 7

    threads = [
        threading.Thread(target=lambda: results.append(flights.do("k", work))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    while not runs:
        time.sleep(0.001)
    assert flights.do("other", lambda: 1) == (1, True)
    # Callers that came while it ran share it; a later caller starts the next one.
    gate.set()
    for thread in threads:
        thread.join(120)
    assert [value for value, _ in results] == [7] * 8
    assert sum(led for _, led in results) == len(runs)


def test_an_error_goes_to_everyone_and_is_forgotten():
    flights: SingleFlight[str, int] = SingleFlight()
    with pytest.raises(ZeroDivisionError):
        flights.do("k", lambda: 1 // 0)
    assert flights.do("k", lambda: 2) == (2, True)


def test_join_waits_for_the_work_under_way():
    flights: SingleFlight[str, int] = SingleFlight()
    gate, running, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> int:
        running.set()
        gate.wait()
        return 1

    leader = threading.Thread(target=lambda: flights.do("k", work))
    leader.start()
    running.wait()

    def wait() -> None:
        flights.join({"k", "idle"})
        done.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not done.wait(0.05)
    gate.set()
    assert done.wait(120)
    leader.join(120)
    waiter.join(120)


def test_a_copy_is_kept_only_if_nothing_was_deleted_since():
    deletions, kept = DeletionEpoch(), []
    before = deletions.current()
    assert deletions.run_if_unchanged(before, lambda: kept.append(1))
    deletions.advance()
    assert not deletions.run_if_unchanged(before, lambda: kept.append(2))
    assert deletions.run_if_unchanged(deletions.current(), lambda: kept.append(3))
    assert kept == [1, 3]
