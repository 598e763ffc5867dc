"""Runs around every request, before and after routing: request id, clock, body limit, API key, and
the count of responses. Plain ASGI.

HEAD is answered as GET, whose body the server leaves out, wherever an answer has an end.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTimeout, BodyTooLarge, KvstitchError, UnsupportedMediaType
from service.gateway.auth.access import Access
from service.gateway.http.content_coding import Decompressed, decompressed_scope, is_compressed
from service.gateway.http.problems import cut_off, respond
from service.gateway.http.uploads import JSON_LINES
from service.gateway.prometheus import GatewayMetrics
from service.settings.serving import LimitSettings

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
UPLOAD_PATH = "/admin/precompute"
# Served without a key, because nothing here depends on anybody's documents.
PUBLIC_PATHS = ("/", "/health", "/docs", "/openapi.json", "/ui")
PUBLIC_FOLDERS = ("/health/", "/ui/", "/.well-known/")


class RequestContext:
    """Puts `arrived` (time.perf_counter) and `request_id` into the request's state.

    A client's X-Request-Id is echoed if it is harmless, else replaced. A body above the limit is
    refused by its Content-Length, or cut off while it comes in; one that is compressed, while it is
    unpacked.

    Args:
        app: The application.
        limits: How long bodies may be, and for how long they may come in.
        metrics: Where responses are counted.
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
        received = 0
        unpacked = 0
        complete = False
        streamed = headers.get("content-type", "").lower().startswith(STREAMED_TYPES)
        limit = self._limits.max_request_bytes
        if scope["path"] == UPLOAD_PATH:
            limit = self._limits.max_upload_bytes if streamed else self._limits.max_body_bytes

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

        async def receive_bounded() -> Message:
            nonlocal received, complete
            if complete:  # only a disconnect can come
                return await receive()
            allowed_s = self._limits.body_timeout_s + received / SLOWEST_BYTES_PER_S
            try:
                async with asyncio.timeout(state["arrived"] + allowed_s - time.perf_counter()):
                    message = await receive()
            except TimeoutError:
                raise BodyTimeout(
                    f"{received} bytes of the body came in {allowed_s:.0f} s: send it faster, or "
                    "in several calls"
                ) from None
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            return message

        async def receive_unpacked() -> Message:
            nonlocal unpacked
            message = await decompressed()
            unpacked += len(message.get("body", b""))
            if unpacked > limit:
                raise _too_large(limit)
            return message

        length = headers.get("content-length", "")
        receive_body: Receive = receive_bounded
        try:
            if length.isdigit() and int(length) > limit:
                raise _too_large(limit)
            if is_compressed(headers):
                decompressed = Decompressed(receive_bounded)
                scope, receive_body = decompressed_scope(scope), receive_unpacked
            await self._app(scope, receive_body, send_with_id)
        except (BodyTimeout, BodyTooLarge, UnsupportedMediaType) as error:
            if started:
                raise
            await respond(Request(scope), error)(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the server ends, and waits no longer for this answer
            if started:
                raise
            await respond(Request(scope), cut_off())(scope, receive, send_with_id)


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDERS)


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
        if scope["type"] == "http" and not _is_public(scope["path"]):
            try:
                principal = await self._access.authenticate(Headers(scope=scope))
            except KvstitchError as error:
                await respond(Request(scope), error)(scope, receive, send)
                return
            scope.setdefault("state", {})["principal"] = principal
        await self._app(scope, receive, send)
