"""Sends one call over a socket of its own and reads everything that comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass

from tests.trials.fuzz.calls import Call

HANG_S = 90.0
# The only answers of 5xx: nowhere to put it, too busy or starting, the client's deadline passed.
PLANNED = {
    503: ("overloaded", "worker_unavailable"),
    504: ("deadline_exceeded",),
    507: ("disk_full",),
}
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_INFORMATIONAL = re.compile(rb"HTTP/1\.1 1\d\d [^\r]*\r\n\r\n")


@dataclass(frozen=True)
class Reply:
    """What came back; status 0: nothing."""

    status: int
    head: bytes
    body: bytes


async def send(port: int, call: Call) -> Reply:
    """Send the call, close the sending side if its end cannot be known, and read to the end.

    Raises:
        TimeoutError: no end within HANG_S seconds.
    """
    async with asyncio.timeout(HANG_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        came = b""
        try:
            with contextlib.suppress(OSError):  # refused before it was read
                writer.write(call.raw())
                await writer.drain()
                if not call.well_framed and writer.can_write_eof():
                    writer.write_eof()
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(1 << 20):
                    came += part
        finally:
            writer.close()
    came = _INFORMATIONAL.sub(b"", came, count=1)
    found = _STATUS.match(came)
    head, _, body = came.partition(b"\r\n\r\n")
    return Reply(int(found[1]) if found else 0, head, body)


def fault(call: Call, reply: Reply) -> str:
    """What is wrong with the reply; "" if nothing is."""
    if reply.status == 0:
        return "" if not call.well_framed else "no answer"
    if b"internal_error" in reply.body or b"worker_fault" in reply.body:
        return "an error of the service itself"
    if b"Traceback (most recent" in reply.body:
        return "a traceback"
    if reply.status >= 500:
        return _unplanned(reply)
    streamed = b"text/event-stream" in reply.head
    if streamed and call.method != "HEAD":
        ends = (b"event: done", b"event: error", b"data: [DONE]")
        return "" if any(end in reply.body for end in ends) else "a stream without end"
    return ""


def _unplanned(reply: Reply) -> str:
    """A 503, 504 or 507 with a body that says why is an answer; everything else is a fault."""
    text = reply.body
    if b"transfer-encoding: chunked" in reply.head.lower():
        text = text.partition(b"\r\n")[2].rpartition(b"\r\n0\r\n")[0]
    try:
        said = json.loads(text)
        code = said.get("error", said)["code"]
    except (ValueError, KeyError, AttributeError, TypeError):
        return f"a {reply.status} without a reason"
    return "" if code in PLANNED.get(reply.status, ()) else f"a {reply.status} {code}"
