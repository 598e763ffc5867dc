"""Who may still hold what was deleted: a worker that left counts as done after its lease."""

from __future__ import annotations

from pathlib import Path

from service.gateway.fleet.discovery import FILE, KnownWorkers


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_one_that_left_counts_until_its_lease_is_over(tmp_path: Path) -> None:
    clock = Clock()
    known = KnownWorkers(tmp_path, 60, clock)
    known.joined(["tcp://a:1", "tcp://b:1"])
    assert known.absent() is None  # they are asked
    known.left("tcp://a:1", gone=False)
    clock.now += 60
    assert "tcp://a:1" in (known.absent() or "")
    clock.now += 10
    assert known.absent() is None
    assert KnownWorkers(tmp_path, 60, clock).absent() is not None  # b, of whom nothing is known


def test_one_that_said_it_is_gone_and_one_that_is_back_are_not_waited_for(tmp_path: Path) -> None:
    known = KnownWorkers(tmp_path, 60, Clock())
    known.joined(["tcp://a:1", "tcp://b:1"])
    known.left("tcp://a:1", gone=True)
    known.left("tcp://b:1", gone=False)
    assert "tcp://b:1" in (known.absent() or "")
    known.joined(["tcp://b:1"])
    assert known.absent() is None


def test_a_restart_forgets_nobody(tmp_path: Path) -> None:
    clock = Clock()
    KnownWorkers(tmp_path, 60, clock).joined(["tcp://a:1", "tcp://b:1"])
    again = KnownWorkers(tmp_path, 60, clock)
    again.joined(["tcp://b:1"])  # a is not listed any more
    assert "tcp://a:1" in (again.absent() or "")
    clock.now += 70
    assert again.absent() is None
    third = KnownWorkers(tmp_path, 60, clock)
    third.joined(["tcp://b:1"])
    assert third.absent() is None


def test_a_spoiled_file_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    known = KnownWorkers(tmp_path, 60, Clock())
    assert known.absent() is None
    known.joined(["tcp://a:1"])
    assert (tmp_path / FILE).read_text() == '["tcp://a:1"]'
