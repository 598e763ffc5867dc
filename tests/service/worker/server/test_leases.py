"""Leases of deletions: what renews them, what ends them, and what the next process learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvstitch.service.worker.server import leases
from kvstitch.service.worker.server.leases import NOTE, Leases


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_ends_unless_some_gateway_of_the_domain_renews_it() -> None:
    clock = Clock()
    leases = Leases(None, clock)
    leases.begin("a", 60)
    for _ in range(5):
        clock.now += 50
        leases.renew("a", 60, clock.now - 1)
        assert not leases.over()
    clock.now += 60
    assert leases.over()
    assert not leases.over()  # once


def test_messages_that_were_late_renew_nothing() -> None:
    clock = Clock()
    leases = Leases(None, clock)
    leases.begin("a", 60)
    clock.now += 50
    leases.begin("a", 60)  # another Hello
    leases.renew("a", 60, 1000.0)  # answers what was sent long ago
    leases.renew("a", 60, 900.0)
    clock.now += 11
    assert leases.over()


def test_one_that_is_renewed_too_late_has_ended_all_the_same() -> None:
    """A machine that was suspended finds both: the end of the lease, and a gateway that is back."""
    for back in ("begin", "renew"):
        clock = Clock()
        leases = Leases(None, clock)
        leases.begin("a", 60)
        clock.now += 600
        if back == "begin":
            leases.begin("a", 60)
        else:
            leases.renew("a", 60, clock.now)
        assert leases.over(), back
        assert not leases.over()


def test_every_domain_has_a_lease_of_its_own() -> None:
    clock = Clock()
    leases = Leases(None, clock)
    leases.begin("a", 60)
    leases.begin("b", 60)
    clock.now += 59
    leases.renew("b", 60, clock.now)
    assert not leases.over()
    clock.now += 2
    assert leases.over()
    clock.now += 2
    assert not leases.over()


def test_the_next_process_goes_on_with_the_leases_of_the_folder(tmp_path: Path) -> None:
    clock, wall = Clock(), Clock()

    def process() -> Leases:
        return Leases(tmp_path, clock, wall)

    first = process()
    first.note()
    assert not first.over() and not (tmp_path / NOTE).exists()
    first.begin("a", 60)
    first.begin("b", 30)
    first.note()
    clock.now += 20
    wall.now += 20
    second = process()
    second.renew("a", 60, clock.now)
    assert not second.over()
    clock.now += 11
    wall.now += 11
    assert process().over()  # of b, and so does one that starts now
    assert second.over()
    second.note()
    assert not process().over()  # what had to go is gone
    assert set(json.loads((tmp_path / NOTE).read_text())) == {"a"}


def test_a_note_is_not_written_before_what_had_to_go_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    leases = Leases(tmp_path, clock, clock)
    leases.begin("a", 60)
    leases.note()
    clock.now += 61
    assert leases.over()
    leases.again()
    leases.note()
    assert Leases(tmp_path, clock, clock).over()
    assert leases.over()
    leases.note()
    assert not Leases(tmp_path, clock, clock).over()


def test_two_processes_share_a_note_and_one_that_is_spoiled_is_over(tmp_path: Path) -> None:
    clock = Clock()
    one, other = Leases(tmp_path, clock, clock), Leases(tmp_path, clock, clock)
    one.begin("a", 60)
    one.note()
    other.begin("b", 60)
    other.note()
    assert set(json.loads((tmp_path / NOTE).read_text())) == {"a", "b"}
    (tmp_path / NOTE).write_text("[")
    spoiled = Leases(tmp_path, clock, clock)
    assert spoiled.over()
    spoiled.note()
    assert not Leases(tmp_path, clock, clock).over()


def test_a_number_is_free_again_when_its_process_has_ended(tmp_path: Path) -> None:
    assert leases.take_number(tmp_path) == 0
    code = (
        "import sys; from pathlib import Path; from kvstitch.service.worker.server import leases;"
        "print(leases.take_number(Path(sys.argv[1])))"
    )
    for _ in range(2):
        taken = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        )
        assert taken.stdout.strip() == "1"


def test_a_folder_has_so_many_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_WORKERS", 2)
    assert [leases.take_number(tmp_path), leases.take_number(tmp_path)] == [0, 1]
    with pytest.raises(OSError, match="another folder"):
        leases.take_number(tmp_path)
