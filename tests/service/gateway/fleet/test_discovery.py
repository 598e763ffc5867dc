"""Where workers are: a list as it is written, a name as the resolver answers; and who may still
hold what was deleted: a worker that left counts as done after its lease."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.gateway.fleet.discovery import FILE, KnownWorkers, dns_name, source_of


async def test_a_list_is_what_is_written() -> None:
    source = source_of("tcp://b:1, tcp://a:2,,tcp://b:1")
    assert [each async for each in source()] == [["tcp://b:1", "tcp://a:2"]]


async def test_a_real_name_has_its_addresses() -> None:
    source = source_of("dns://localhost:5700")
    found = await asyncio.wait_for(anext(source()), 20)
    assert set(found) <= {"tcp://127.0.0.1:5700", "tcp://[::1]:5700"} and found


async def test_changes_are_told_and_a_resolver_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def info(*hosts: str) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 5700)) for host in hosts]

    answers: list[Any] = [
        info("10.0.0.2", "10.0.0.1", "10.0.0.2"),
        info("10.0.0.1", "10.0.0.2"),
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        info("10.0.0.1", "10.0.0.3"),
        socket.gaierror(socket.EAI_NONAME, "no such name"),
        info("10.0.0.9"),
    ]

    async def getaddrinfo(*args: object, **named: object) -> list[Any]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    watched = dns_name("dns://workers:5700", every_s=0.001)
    told = [await asyncio.wait_for(anext(watched), 60) for _ in range(4)]
    assert told == [
        ["tcp://10.0.0.1:5700", "tcp://10.0.0.2:5700"],
        ["tcp://10.0.0.1:5700", "tcp://10.0.0.3:5700"],
        [],
        ["tcp://10.0.0.9:5700"],
    ]


def test_one_that_left_counts_until_its_lease_is_over(tmp_path: Path) -> None:
    now = [1000.0]
    known = KnownWorkers(tmp_path, 60, lambda: now[0])
    known.joined(["tcp://a:1", "tcp://b:1"])
    assert known.absent() is None  # they are asked
    known.left("tcp://a:1", gone=False)
    now[0] += 60
    assert "tcp://a:1" in (known.absent() or "")
    now[0] += 10
    assert known.absent() is None
    assert (
        KnownWorkers(tmp_path, 60, lambda: now[0]).absent() is not None
    )  # b, of whom nothing is known


def test_one_that_said_it_is_gone_and_one_that_is_back_are_not_waited_for(tmp_path: Path) -> None:
    known = KnownWorkers(tmp_path, 60, lambda: 0.0)
    known.joined(["tcp://a:1", "tcp://b:1"])
    known.left("tcp://a:1", gone=True)
    known.left("tcp://b:1", gone=False)
    assert "tcp://b:1" in (known.absent() or "")
    known.joined(["tcp://b:1"])
    assert known.absent() is None


def test_a_restart_forgets_nobody(tmp_path: Path) -> None:
    now = [1000.0]
    KnownWorkers(tmp_path, 60, lambda: now[0]).joined(["tcp://a:1", "tcp://b:1"])
    again = KnownWorkers(tmp_path, 60, lambda: now[0])
    again.joined(["tcp://b:1"])  # a is not listed any more
    assert "tcp://a:1" in (again.absent() or "")
    now[0] += 70
    assert again.absent() is None
    third = KnownWorkers(tmp_path, 60, lambda: now[0])
    third.joined(["tcp://b:1"])
    assert third.absent() is None


def test_a_spoiled_file_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    known = KnownWorkers(tmp_path, 60, lambda: 0.0)
    assert known.absent() is None
    known.joined(["tcp://a:1"])
    assert (tmp_path / FILE).read_text() == '["tcp://a:1"]'
