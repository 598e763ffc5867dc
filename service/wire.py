"""Encodes messages to bytes and back, as msgpack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from service.messages import FromWorker, Message, ToWorker

# Enough for any prompt that a model takes (a million ids), too little to exhaust memory.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: Message) -> bytes:
    """The message as bytes."""
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    """Decode a message to the worker. Raises msgspec.DecodeError if the bytes are not one."""
    with _one_error():
        return _to_worker.decode(data)


def decode_from_worker(data: bytes) -> FromWorker:
    """Decode a message from the worker. Raises msgspec.DecodeError if the bytes are not one."""
    with _one_error():
        return _from_worker.decode(data)


@contextmanager
def _one_error() -> Iterator[None]:
    """What is no message is a DecodeError, also where msgspec lets another error out."""
    try:
        yield
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
