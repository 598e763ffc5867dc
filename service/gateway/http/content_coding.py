"""Reads bodies that come compressed, piece by piece, as `Content-Encoding: gzip` says."""

from __future__ import annotations

import asyncio
import zlib

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from service.errors import MalformedBody, UnsupportedMediaType

PIECE_BYTES = 262_144  # of text at a time: others get their turn in between
_GZIP = ("gzip", "x-gzip")
_WITH_GZIP_HEADER = 31  # what zlib calls it


def is_compressed(headers: Headers) -> bool:
    """Return whether a body has to be decompressed."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return False
    if coding not in _GZIP:
        raise UnsupportedMediaType(
            f"Content-Encoding {coding} cannot be read: send the body as it is, or gzip"
        )
    return True


def decompressed_scope(scope: Scope) -> Scope:
    """Return the scope without the headers that are about the compressed body."""
    about_it = (b"content-encoding", b"content-length")
    kept = [(name, value) for name, value in scope["headers"] if name.lower() not in about_it]
    return {**scope, "headers": kept}


class Decompressed:
    """An ASGI `receive` that gives the content of a gzip body, `PIECE_BYTES` at most at a time."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._decoder = zlib.decompressobj(_WITH_GZIP_HEADER)
        self._packed = b""  # came in, and is not unpacked yet
        self._pending = False  # whether the decoder may hold more without any input
        self._more = True  # whether more may come in
        self._any = False

    async def __call__(self) -> Message:
        if not self._packed and not self._pending:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._packed, self._more = message.get("body", b""), message.get("more_body", False)
            self._any |= bool(self._packed)
        piece = self._unpack()
        complete = not (self._packed or self._pending or self._more)
        if complete and self._any and not self._decoder.eof:
            raise MalformedBody("the body is gzip that ends too soon: send all of it", field="body")
        await asyncio.sleep(0)
        return {"type": "http.request", "body": piece, "more_body": not complete}

    def _unpack(self) -> bytes:
        if self._packed and self._decoder.eof:  # several files one after another are one, too
            self._decoder = zlib.decompressobj(_WITH_GZIP_HEADER)
        try:
            piece = self._decoder.decompress(self._packed, PIECE_BYTES)
        except zlib.error as error:
            raise MalformedBody(
                f"Content-Encoding says gzip, and the body is none ({error}): send it as it is, "
                "or compress it",
                field="body",
            ) from error
        self._packed = self._decoder.unused_data or self._decoder.unconsumed_tail
        self._pending = len(piece) == PIECE_BYTES and not self._decoder.eof
        return piece
