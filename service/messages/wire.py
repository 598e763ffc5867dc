"""Encodes messages to bytes and back, as msgpack: no pickle, no paths."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from kvstitch.service.messages.replies import FromWorker
from kvstitch.service.messages.requests import Message, ToWorker

# Fields are only added, with defaults, and unknown ones are ignored: that is no new protocol. A
# change that the other side must know of is one; a gateway talks to workers of KNOWN_PROTOCOLS.
PROTOCOL = 1
KNOWN_PROTOCOLS = (1,)

# Enough for any prompt that a model takes (a million ids), too little to exhaust memory.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


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
    """Raise a DecodeError for all that is no message, also where msgspec lets another error out."""
    try:
        yield
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
