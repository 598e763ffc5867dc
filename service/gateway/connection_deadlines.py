"""HTTP/1.1 connections whose client must say what it wants in time, and take what it asked for.

uvicorn waits for both for ever. A client that sends a byte of a header now and then costs it a
connection; one that never reads a long answer costs a place among the answers in flight, and the
worker its memory.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def with_deadlines(*, header_s: float, reading_s: float) -> type[H11Protocol]:
    """A protocol that ends connections of clients that are too slow.

    Args:
        header_s: Seconds until the header of the next request is complete.
        reading_s: Seconds in which a client takes nothing of what waits for it.
    """

    class DeadlineProtocol(H11Protocol):
        _header_deadline: asyncio.TimerHandle | None = None
        _reading_deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # So that `pause_writing` is called as soon as the system takes no more bytes, and
            # `resume_writing` when it has taken all: otherwise 64 KiB could wait unnoticed.
            transport.set_write_buffer_limits(high=0)
            self._header_deadline = self.loop.call_later(header_s, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._forget_header_deadline()
            elif self._header_deadline is None:  # the next request on this connection has begun
                self._header_deadline = self.loop.call_later(header_s, self.transport.close)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect_reading(self._unsent())

        def resume_writing(self) -> None:
            self._forget_reading_deadline()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_header_deadline()
            self._forget_reading_deadline()
            super().connection_lost(exc)

        def _unsent(self) -> int:
            return self.transport.get_write_buffer_size()

        def _expect_reading(self, unsent: int) -> None:
            """Look again when the time is over: fewer bytes than now must wait then."""
            self._reading_deadline = self.loop.call_later(reading_s, self._check_reading, unsent)

        def _check_reading(self, unsent_before: int) -> None:
            if self._unsent() < unsent_before:  # slow, but it reads
                self._expect_reading(self._unsent())
            else:
                self.transport.abort()  # `close` would wait until the client has read everything

        def _forget_header_deadline(self) -> None:
            if self._header_deadline is not None:
                self._header_deadline.cancel()
                self._header_deadline = None

        def _forget_reading_deadline(self) -> None:
            if self._reading_deadline is not None:
                self._reading_deadline.cancel()
                self._reading_deadline = None

    return DeadlineProtocol
