"""Clients that read slowly, or nothing, of what they asked for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from kvstitch.service.gateway.server import listen, with_deadlines
from tests.service.gateway.rig import HANG_S, until

PIECE = bytes(1 << 18)
PIECES = 40  # 10 MiB: far more than the system takes for a client that does not read
READING_S = 3.0  # whoever reads slowly must have its turn within it


class LongAnswer:
    """An application that sends ten MiB; `sending` is what has a place in the service."""

    def __init__(self) -> None:
        self.sending = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.sending += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(PIECES):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.sending -= 1


@pytest.fixture
def app() -> LongAnswer:
    return LongAnswer()


@pytest.fixture
def port(app: LongAnswer) -> Iterator[int]:
    """Where `app` is served with a deadline for readers."""
    deadlines = with_deadlines(header_s=HANG_S, reading_s=READING_S)
    config = uvicorn.Config(app, http=deadlines, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    bound = listen("127.0.0.1", 0)
    number: int = bound.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
    thread.start()
    until(lambda: server.started, "the server started")
    yield number
    server.should_exit = server.force_exit = True
    thread.join()
    bound.close()


@contextlib.contextmanager
def asking(port: int) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(HANG_S)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        yield connection


def test_whoever_reads_nothing_is_cut_off(app: LongAnswer, port: int) -> None:
    with asking(port), asking(port), asking(port):
        until(lambda: app.sending == 3, "all are answered")
        until(lambda: app.sending == 0, "all have given their places back")


def test_whoever_reads_slowly_gets_everything(app: LongAnswer, port: int) -> None:
    received = 0
    with asking(port) as connection:
        started = time.monotonic()
        while part := connection.recv(1 << 20):
            received += len(part)
            slow_until = started + 1.5 * READING_S * received / (len(PIECE) * PIECES)
            time.sleep(max(0.0, slow_until - time.monotonic()))
    assert received > len(PIECE) * PIECES
