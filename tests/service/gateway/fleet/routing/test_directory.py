"""The directory: changes in order, gaps, snapshots, what is expected, what is deleted."""

from __future__ import annotations

import random

import pytest

from kvstitch.service.gateway.fleet.routing import directory as module
from kvstitch.service.gateway.fleet.routing.directory import EXPECTED_S, Directory
from kvstitch.service.messages.replies import Holdings, WorkerLoad
from kvstitch.service.worker.server.reporter import CachedChunks

A, B, C = (bytes([letter]) * 16 for letter in b"abc")


def holdings(
    number: int, added: list[bytes], removed: list[bytes] | None = None, *, snapshot: bool = False
) -> Holdings:
    return Holdings(number, added, removed or [], snapshot, 0, WorkerLoad())


def test_changes_are_taken_over_in_order() -> None:
    directory = Directory()
    assert directory.apply(0, holdings(7, [A, B], snapshot=True))
    assert directory.apply(1, holdings(1, [B], snapshot=True))
    assert directory.apply(0, holdings(8, [C], [A]))
    found = [directory.holders(name) for name in (A, B, C)]
    assert found == [frozenset(), {0, 1}, {0}]
    assert all(directory.is_stored(name) for name in (A, B, C))


def test_after_a_gap_nothing_counts_until_a_snapshot() -> None:
    directory = Directory()
    assert not directory.apply(0, holdings(1, [A]))  # never saw a beginning
    assert directory.apply(0, holdings(2, [A], snapshot=True))
    assert directory.apply(1, holdings(1, [A], snapshot=True))
    assert not directory.apply(0, holdings(4, [B]))
    assert directory.holders(A) == {1} and not directory.holders(B)
    assert not directory.apply(0, holdings(5, [C]))
    assert directory.apply(0, holdings(6, [B], snapshot=True))
    assert directory.apply(0, holdings(7, [C]))
    assert [directory.holders(name) for name in (A, B, C)] == [{1}, {0}, {0}]


def test_a_worker_that_restarts_begins_anew() -> None:
    directory = Directory()
    directory.apply(0, holdings(9, [A, B], snapshot=True))
    directory.forget(0)
    assert not directory.holders(A) and directory.held(0) == 0
    assert not directory.apply(0, holdings(10, [C]))
    assert directory.apply(0, holdings(1, [], snapshot=True))


def test_what_was_sent_somewhere_is_expected_there_for_a_while() -> None:
    now = 100.0
    directory = Directory(lambda: now)
    directory.expect(1, [A, B])
    assert directory.expected_at(A) == 1 and directory.expected_at(C) is None
    directory.apply(0, holdings(1, [A], snapshot=True))
    assert directory.expected_at(A) is None  # it is held, which is better
    now += EXPECTED_S
    assert directory.expected_at(B) is None


def test_what_is_deleted_is_nowhere() -> None:
    directory = Directory()
    directory.apply(0, holdings(1, [A, B], snapshot=True))
    directory.expect(0, [C])
    directory.deleted([A, C])
    assert not directory.holders(A) and not directory.is_stored(A)
    assert directory.expected_at(C) is None and directory.holders(B) == {0}
    assert directory.apply(0, holdings(2, [], [A]))  # the worker's own news of it


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STORED", 2)
    directory = Directory()
    directory.note_stored([A, B, C])
    assert [directory.is_stored(name) for name in (A, B, C)] == [False, True, True]


def test_it_follows_a_worker_that_loses_messages() -> None:
    """Random changes and losses: whenever a message arrives, it is equal or asks for a snapshot."""
    rng = random.Random(11)
    worker, directory = CachedChunks(), Directory()
    names = {f"key-{n}": bytes([n]) * 16 for n in range(20)}
    held: set[str] = set()
    worker.report_all()
    equal = 0
    for number in range(1, 600):
        for key in rng.sample(sorted(names), 3):
            if key in held:
                held.discard(key)
            else:
                worker.name([(key, names[key])])
                held.add(key)
            worker.changed(key, key in held)
        changes = worker.changes()
        if rng.random() < 0.1:
            continue  # lost
        message = holdings(number, changes.added, changes.removed, snapshot=changes.snapshot)
        if directory.apply(0, message):
            equal += 1
            assert {k for k in names if directory.holders(names[k])} == held
        else:
            worker.report_all()
    assert equal > 300
