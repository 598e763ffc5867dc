"""Leases of deletions: what renews them, what ends them, and what the next process learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.worker.server import folder_seat
from service.worker.server.leases import NOTE, Leases, is_over


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


def test_the_note_says_until_when_the_folder_can_be_trusted(tmp_path: Path) -> None:
    clock, wall = Clock(), Clock()
    leases = Leases(tmp_path, clock, wall)
    assert not leases.over() and not (tmp_path / NOTE).exists()
    assert not is_over(tmp_path, wall)  # nothing is known: one gateway's own folder
    leases.begin("a", 60)
    leases.begin("b", 30)
    leases.over()
    wall.now += 29
    assert not is_over(tmp_path, wall)
    wall.now += 2
    assert is_over(tmp_path, wall)
    (tmp_path / NOTE).write_text("")
    assert is_over(tmp_path, lambda: 0.0)
    clock.now += 100
    assert leases.over()
    leases.emptied()
    assert not (tmp_path / NOTE).exists()


def test_a_folder_is_emptied_unless_another_process_has_a_seat(tmp_path: Path) -> None:
    assert folder_seat.take(tmp_path) == 0
    chunk = tmp_path / "ab" / "cd" / "x.safetensors"
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(b"KV")
    (tmp_path / NOTE).write_text("0")
    code = (
        "import sys; from pathlib import Path; from service.worker.server import folder_seat as s;"
        "p = Path(sys.argv[1]); s.empty_if_over(p); print(s.take(p))"
    )
    taken = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert taken.stdout.strip() == "1" and chunk.exists()
    other = tmp_path / "other"
    chunk = other / "ab" / "x"
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(b"KV")
    folder_seat.empty_if_over(other)
    assert chunk.exists()  # no note
    (other / NOTE).write_text("0")
    folder_seat.empty_if_over(other)
    assert not chunk.exists() and not (other / NOTE).exists()


def test_a_folder_has_so_many_seats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_seat, "SEATS", 2)
    assert [folder_seat.take(tmp_path), folder_seat.take(tmp_path)] == [0, 1]
    with pytest.raises(OSError, match="another folder"):
        folder_seat.take(tmp_path)
