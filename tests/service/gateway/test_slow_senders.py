"""Clients that send a byte now and then, and keys that ask for everything."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from kvstitch.service.errors import Overloaded, QuotaExceeded
from kvstitch.service.gateway.admission import ConcurrencyLimiter
from kvstitch.service.gateway.prometheus import GatewayMetrics
from tests.service.gateway.rig import HANG_S, Rig, running

DRIP_S = 0.2
TIMEOUT_S = 3.0  # others, who send all at once, must have their turn within it


def connect(rig: Rig) -> socket.socket:
    host, port = rig.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=HANG_S)


def dripped(connection: socket.socket, content: bytes) -> bytes:
    """Send a byte at a time until there is an answer; returns it, b"" if it was closed."""
    connection.settimeout(DRIP_S)
    for byte in content:
        try:
            connection.sendall(bytes([byte]))
            return connection.recv(65_536)
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("all of it was taken, however slowly")


def test_a_header_must_come_in_time(folder: Path, data: Path) -> None:
    header = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 400
    with running(folder, data, header_timeout_s=TIMEOUT_S) as rig:
        with connect(rig) as first:
            assert dripped(first, header) == b""
        with connect(rig) as second:  # the second request of a connection
            second.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b'"ok"' not in answer:
                part = second.recv(65_536)
                assert part, answer
                answer += part
            assert dripped(second, header) == b""
        assert len(rig.stream()) > 2, "others are served"


def test_a_body_must_come_in_time(folder: Path, data: Path) -> None:
    with running(folder, data, body_timeout_s=TIMEOUT_S) as rig:
        for path in ("/admin/precompute", "/v1/rag/generate"):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            with connect(rig) as connection:
                connection.sendall(head.encode() + b"Content-Length: 1000\r\n\r\n")
                answer = dripped(connection, b'{"question": "' + b"a" * 400)
                assert b" 408 " in answer, answer
                rest = answer
                with suppress(ConnectionResetError):  # closed with bytes that nobody read
                    while part := connection.recv(65_536):
                        rest += part
            assert b"body_timeout" in rest, "and then the connection is closed"
        rig.ingest()
        assert rig.ask().status_code == 200


def test_places_follow_the_number_of_workers() -> None:
    limiter = ConcurrencyLimiter(
        max_running=1, max_waiting=1, max_waiting_tokens=1000, metrics=GatewayMetrics({})
    )
    limiter.resize(3)
    slots = [limiter.acquire(1) for _ in range(4)]
    limiter.resize(0)  # no worker is ready; what is under way stays
    assert limiter.in_flight == 4 and limiter.retry_after_s > 0
    with pytest.raises(Overloaded):
        limiter.acquire(1)
    for slot in slots:
        slot.close()
    limiter.acquire(1).close()


def test_one_key_takes_half_of_the_places() -> None:
    metrics = GatewayMetrics({})
    limiter = ConcurrencyLimiter(
        max_running=4, max_waiting=4, max_waiting_tokens=1000, metrics=metrics
    )
    slots = [limiter.acquire(1, "greedy") for _ in range(4)]
    with pytest.raises(QuotaExceeded, match="limit"):
        limiter.acquire(1, "greedy")
    others = [limiter.acquire(1, "other") for _ in range(4)]
    with pytest.raises(Overloaded):
        limiter.acquire(1, "third")
    for slot in (*slots, *others):
        slot.close()
        slot.close()
    assert limiter.in_flight == 0
    anonymous = [limiter.acquire(1) for _ in range(8)]
    assert len(anonymous) == 8, "without keys there is one sender"
