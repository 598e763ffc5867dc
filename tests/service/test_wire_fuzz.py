"""Random and damaged messages: a message or msgspec's error, never anything else."""

from __future__ import annotations

from typing import get_args

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import FromWorker
from kvstitch.service.messages.requests import (
    Abort,
    ChunkTokens,
    Generate,
    Message,
    Method,
    Precompute,
    ToWorker,
)

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
TEXT = st.text(max_size=20)
CHUNKS = st.lists(st.builds(ChunkTokens, st.integers(-5, 2**40), IDS), max_size=4)
PARAMETERS = st.dictionaries(
    TEXT, st.integers(-9, 9) | st.floats(allow_nan=False) | TEXT, max_size=3
)
METHODS = st.builds(Method, TEXT, PARAMETERS)
TO_WORKER: st.SearchStrategy[Message] = st.one_of(
    st.builds(Generate, TEXT, IDS, CHUNKS, IDS, fusion=METHODS, eviction=st.none() | METHODS),
    st.builds(Precompute, TEXT, IDS, CHUNKS, tenant=TEXT),
    st.builds(Abort, TEXT, TEXT),
)


@settings(max_examples=150, deadline=None)
@given(message=TO_WORKER)
def test_what_is_sent_is_received(message: Message) -> None:
    assert wire.decode_to_worker(wire.encode(message)) == message


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_messages(data: st.DataObject) -> None:
    raw = bytearray(wire.encode(data.draw(TO_WORKER)))
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    check(bytes(raw))


@settings(max_examples=500, deadline=None)
@given(raw=st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    check(raw)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
NAMES = [kind.__name__ for kind in (*get_args(ToWorker), *get_args(FromWorker))]
FIELDS = sorted({field for kind in get_args(ToWorker) for field in kind.__struct_fields__})


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    fields=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=8),
)
def test_known_names_with_fields_of_any_kind(name: str, fields: dict[str, object]) -> None:
    check(msgspec.msgpack.encode({"type": name, **fields}))


def test_deep_nesting() -> None:
    for opening in (b"\x91", b"\x81\xa1a"):
        check(opening * 100_000 + b"\xc0")


def check(raw: bytes) -> None:
    for decode in (wire.decode_to_worker, wire.decode_from_worker):
        try:
            message = decode(raw)
        except msgspec.DecodeError:
            continue
        assert isinstance(message, Message)
