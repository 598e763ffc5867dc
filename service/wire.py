"""Messages to bytes and back (msgpack through msgspec). Knows no sockets and no meanings."""

from __future__ import annotations

import msgspec

from service.messages import FromWorker, Message, ToWorker

# Longer than any prompt a model takes (a million ids), far shorter than what could hurt.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    """Raises msgspec.DecodeError (or its subclass ValidationError) on anything unexpected."""
    return _to_worker.decode(data)


def decode_from_worker(data: bytes) -> FromWorker:
    """Raises msgspec.DecodeError (or its subclass ValidationError) on anything unexpected."""
    return _from_worker.decode(data)
