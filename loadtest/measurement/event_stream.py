"""Parses server-sent events from bytes as they arrive.

An event is returned by the call of `feed` that gets its last byte. So the time of that call is the
event's time of arrival, however the network has split the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

LF, CR = 0x0A, 0x0D


@dataclass(frozen=True)
class ServerSentEvent:
    """One event.

    Attributes:
        name: its name; `message` if the server gives none.
        data: its data lines, joined.
    """

    name: str
    data: str


class EventParser:
    """Turns received bytes into events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._name = ""
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[ServerSentEvent]:
        """The events that these bytes complete, in order. Lines may end in LF, CR LF or CR."""
        events = []
        for byte in received:
            if byte == LF and self._after_cr:
                self._after_cr = False
                continue
            self._after_cr = byte == CR
            if byte not in (LF, CR):
                self._line.append(byte)
                continue
            line, self._line = self._line.decode(errors="replace"), bytearray()
            if (event := self._end_of_line(line)) is not None:
                events.append(event)
        return events

    def _end_of_line(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        # A line that begins with a colon is a comment; servers send them as pings.
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        name, data = self._name or "message", self._data
        self._name, self._data = "", []
        return ServerSentEvent(name, "\n".join(data)) if data else None
