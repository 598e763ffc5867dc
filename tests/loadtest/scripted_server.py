"""A real socket server that sends scripted bytes, with a clock that only the script moves.

Each part of a script is a time and bytes. A part is sent after the client has read the previous
one, so the time that the client's clock gives for each part is known exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass
class Script:
    """A script and the client's clock.

    Attributes:
        parts: (time, bytes) to send one after the other.
        head: sent first.
        now: the time of the client's clock, in seconds.
        requests: bodies of the requests so far.
    """

    parts: Sequence[tuple[float, bytes]]
    head: bytes = HEAD
    now: float = 100.0
    requests: list[bytes] = field(default_factory=list)
    _read: asyncio.Event = field(default_factory=asyncio.Event)

    def clock(self) -> float:
        self._read.set()
        return self.now

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append(await reader.readexactly(length))
        writer.write(self.head)
        for at, data in self.parts:
            self._read.clear()
            self.now = at
            writer.write(data)
            await writer.drain()
            await self._read.wait()
        writer.close()


@asynccontextmanager
async def playing(script: Script) -> AsyncIterator[str]:
    """Serve a script; yields the base URL."""
    server = await asyncio.start_server(script.play, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
