from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.measurement.event_stream import EventParser, ServerSentEvent

STREAM = (
    ": a comment\n\nevent: token\ndata: {}\n\ndata: first\ndata:second — §\r\n\r\n"
    "id: 3\nevent: empty\n\nevent: done\rdata: x\r\r: ping\n\ndata: last\n\n"
).encode()
EVENTS = [
    ServerSentEvent("token", "{}"),
    ServerSentEvent("message", "first\nsecond — §"),
    ServerSentEvent("done", "x"),
    ServerSentEvent("message", "last"),
]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_where_the_stream_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    parser = EventParser()
    found = [event for a, b in itertools.pairwise(places) for event in parser.feed(STREAM[a:b])]
    assert found == EVENTS


@pytest.mark.parametrize("end", ["\n\n", "\r\r", "\r\n\r\n"])
def test_an_event_is_there_with_the_byte_that_ends_it(end: str) -> None:
    """Not one later: the time of an event is when it came."""
    data = f"data: x{end}".encode()
    # CR LF: the event ends with its second CR, the LF behind it is skipped.
    last = len(data) - 2 if end == "\r\n\r\n" else len(data) - 1
    parser = EventParser()
    arrived = [index for index in range(len(data)) if parser.feed(data[index : index + 1])]
    assert arrived == [last]
