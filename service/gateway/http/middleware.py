"""Runs around every request, before and after routing: request id, clock, body limit, API key, and
the count of responses. Plain ASGI.

HEAD is answered as GET, whose body the server leaves out, wherever an answer has an end.
"""

import asyncio
import re
import time
import uuid
import zlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvstitch.service.errors import (
    BodyTimeout,
    BodyTooLarge,
    KvstitchError,
    MalformedBody,
    UnsupportedMediaType,
)
from kvstitch.service.gateway.auth.access import Access
from kvstitch.service.gateway.http.problems import cut_off, respond
from kvstitch.service.gateway.http.uploads import JSON_LINES
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.settings.serving import LimitSettings

REQUEST_ID_HEADER = "X-Request-Id"
_HARMLESS_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
UNROUTED = "none"  # label of a response to an unknown path, or one refused before routing
# Of every response that does not say otherwise: as a page it may load and run nothing.
SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# Bodies that are read as they come in, and may therefore be larger than memory allows for others.
STREAMED_TYPES = ("multipart/form-data", *JSON_LINES)
SLOWEST_BYTES_PER_S = 16_384  # of a body that may take longer because it is long
PIECE_BYTES = 262_144  # of unpacked text at a time: others get their turn in between
_WITH_GZIP_HEADER = 31  # what zlib calls it
UPLOAD_PATH = "/admin/precompute"
# Served without a key, because nothing here depends on anybody's documents.
PUBLIC_PATHS = ("/", "/health", "/docs", "/openapi.json", "/ui")
PUBLIC_FOLDERS = ("/health/", "/ui/", "/.well-known/")


class RequestContext:
    """Puts `arrived` (time.perf_counter) and `request_id` into the request's state.

    A client's X-Request-Id is echoed if it is harmless, else replaced. A body above the limit is
    refused by its Content-Length, or cut off while it comes in; one that is compressed, while it is
    unpacked.
    """

    def __init__(self, app: ASGIApp, *, limits: LimitSettings, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server's own scope goes on saying HEAD
        headers = Headers(scope=scope)
        sent_id = headers.get(REQUEST_ID_HEADER, "")
        request_id = sent_id if _HARMLESS_ID.fullmatch(sent_id) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["arrived"], state["request_id"] = time.perf_counter(), request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                sent = MutableHeaders(scope=message)
                sent[REQUEST_ID_HEADER] = request_id
                for name, value in SAFE_HEADERS.items():
                    sent.setdefault(name, value)
                # The route's pattern, because a path may hold the name of a document.
                route = getattr(scope.get("route"), "path", UNROUTED)
                self._metrics.responses.labels(route, str(message["status"])).inc()
            await send(message)

        try:
            scope, receive_body = self._bounded(scope, headers, receive)
            await self._app(scope, receive_body, send_with_id)
        except (BodyTimeout, BodyTooLarge, UnsupportedMediaType) as error:
            if started:
                raise
            await respond(Request(scope), error)(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server ends, and waits no longer for this answer
            if started:
                raise
            await respond(Request(scope), cut_off())(scope, receive, send_with_id)

    def _bounded(self, scope: Scope, headers: Headers, receive: Receive) -> tuple[Scope, Receive]:
        """Return what gives no more of the body than is allowed, unpacked, and the scope of that.
        Raises BodyTooLarge: the body says so; UnsupportedMediaType: it cannot be unpacked."""
        limit = self._limits.max_request_bytes
        if scope["path"] == UPLOAD_PATH:
            streamed = headers.get("content-type", "").lower().startswith(STREAMED_TYPES)
            limit = self._limits.max_upload_bytes if streamed else self._limits.max_body_bytes
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        timeout_s = self._limits.body_timeout_s
        body = BoundedBody(receive, limit, scope["state"]["arrived"], timeout_s)
        coding = headers.get("content-encoding", "").strip().lower()
        if coding in ("", "identity"):
            return scope, body
        if coding not in ("gzip", "x-gzip"):
            raise UnsupportedMediaType(
                f"Content-Encoding {coding} cannot be read: send the body as it is, or gzip"
            )
        of_packed = (b"content-encoding", b"content-length")
        kept = [(name, value) for name, value in scope["headers"] if name.lower() not in of_packed]
        return {**scope, "headers": kept}, UnpackedBody(body, limit)


class BoundedBody:
    """An ASGI `receive` that raises BodyTooLarge or BodyTimeout for a body that is above a limit,
    or slow; `arrived` is by time.perf_counter."""

    def __init__(self, receive: Receive, limit: int, arrived: float, timeout_s: float) -> None:
        self._receive, self._limit = receive, limit
        self._ends = arrived + timeout_s
        self._timeout_s = timeout_s
        self._received = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:  # only a disconnect can come
            return await self._receive()
        more_s = self._received / SLOWEST_BYTES_PER_S
        try:
            async with asyncio.timeout(self._ends + more_s - time.perf_counter()):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeout(
                f"{self._received} bytes of the body came in {self._timeout_s + more_s:.0f} s: "
                "send it faster, or in several calls"
            ) from None
        self._complete = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._limit:
            raise _too_large(self._limit)
        return message


class UnpackedBody:
    """An ASGI `receive` that gives the content of a gzip body, `PIECE_BYTES` at most at a time;
    raises BodyTooLarge, MalformedBody."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._decoder = zlib.decompressobj(_WITH_GZIP_HEADER)
        self._packed = b""  # came in, and is not unpacked yet
        self._pending = False  # whether the decoder may hold more without any input
        self._more = True  # whether more may come in
        self._any = False
        self._unpacked = 0

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
        self._unpacked += len(piece)
        await asyncio.sleep(0)
        if self._unpacked > self._limit:
            raise _too_large(self._limit)
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


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit} bytes: send it in several calls", field="body"
    )


class Authentication:
    """Puts the `principal` into the request's state, or answers 401 before the body is read."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        public = path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDERS)
        if scope["type"] == "http" and not public:
            try:
                principal = await self._access.authenticate(Headers(scope=scope))
            except KvstitchError as error:
                await respond(Request(scope), error)(scope, receive, send)
                return
            scope.setdefault("state", {})["principal"] = principal
        await self._app(scope, receive, send)
