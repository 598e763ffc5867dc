"""Where workers are: a list as it is written, and a name as the resolver answers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from service.gateway.fleet.discovery import dns_name, source_of


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
