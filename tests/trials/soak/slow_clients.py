"""Clients that hold connections and give or take almost nothing, on a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections import Counter
from typing import Self

DRIP_S = 0.5  # between two bytes
KINDS = ("header", "body", "reader")
_BODY = json.dumps({"question": "Which animal?" + " " * 500, "max_tokens": 1}).encode()
_STREAM = json.dumps({"question": "Which animal?", "max_tokens": 2, "stream": True}).encode()


class SlowClients:
    """A third sends its header byte by byte, a third its body, a third never reads its stream.

    Whoever is cut off comes back at once. Use as a context manager.

    Attributes:
        ended: how many connections the service has ended, by kind.
    """

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="slow-clients")
        self._stop = asyncio.Event()
        self.ended: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._all())
        self._loop.close()

    async def _all(self) -> None:
        kinds = [KINDS[n % len(KINDS)] for n in range(self._count)]
        clients = [asyncio.create_task(self._again_and_again(kind)) for kind in kinds]
        await self._stop.wait()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _again_and_again(self, kind: str) -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                await self._once(kind)
            self.ended[kind] += 1

    async def _once(self, kind: str) -> None:
        """One connection until the service ends it."""
        connection = socket.socket()
        connection.setblocking(False)
        if kind == "reader":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        try:
            await self._loop.sock_connect(connection, ("127.0.0.1", self._port))
            if kind == "reader":
                await self._loop.sock_sendall(connection, self._head(_STREAM) + _STREAM)
                await asyncio.sleep(3600)
            slow = self._head(_BODY)
            if kind == "body":
                await self._loop.sock_sendall(connection, slow)
                slow = _BODY
            for byte in slow:
                await self._loop.sock_sendall(connection, bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRIP_S):
                        await self._loop.sock_recv(connection, 1)
                        return
        finally:
            connection.close()

    def _head(self, body: bytes) -> bytes:
        lines = ["POST /v1/rag/generate HTTP/1.1", f"Host: 127.0.0.1:{self._port}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode()
