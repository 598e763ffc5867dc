"""One entry of the audit log for every call that asks or changes something, by who may call at all.

It is on disk before the first byte of the response is sent. Where it cannot be written the caller
gets the error in place of the response: nobody is given an answer that is not recorded. Plain ASGI.

Calls without a valid key, and sign-ins that fail, are not recorded, because anybody could fill the
log with them. Entries that come while others are written are written together.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.http.dependencies import QUESTIONS, take_notes
from kvstitch.service.gateway.http.problems import respond
from kvstitch_audit.audit_log import AuditLog, now
from kvstitch_audit.chain import Event, Head

FORGET_EVERY_S = 3600.0


class AuditWriter:
    """Must be used on one event loop.

    Args:
        log: Opened and closed by others.
        settings: Of the service; others may be set later.
    """

    def __init__(self, log: AuditLog, settings: Any) -> None:
        self.log = log
        self.settings = settings
        self._waiting: list[tuple[Event, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._forgot_at = float("-inf")

    async def append(self, event: Event) -> None:
        """Return when the entry is on disk."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((event, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="audit")
        await written

    async def read(self, tenant: str, after: int, limit: int) -> tuple[Head, list[dict[str, Any]]]:
        """Return the end of a tenant's chain, and entries after a number."""
        heads = await asyncio.to_thread(self.log.heads)
        page = await asyncio.to_thread(self.log.page, tenant, after, limit)
        return heads.get(tenant, Head()), page

    async def close(self) -> None:
        """Wait for what is being written."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                failure: Exception | None = None
                try:
                    await asyncio.to_thread(self.log.append, [event for event, _ in batch])
                except Exception as error:
                    failure = error
                for _, written in batch:
                    if written.done():  # nobody waits for it any more
                        continue
                    if failure is None:
                        written.set_result(None)
                    else:
                        written.set_exception(failure)
            await self._forget()
        finally:
            self._writing = None

    async def _forget(self) -> None:
        days = self.settings.audit_retention_days
        if not days or time.monotonic() - self._forgot_at < FORGET_EVERY_S:
            return
        self._forgot_at = time.monotonic()
        before = datetime.now(UTC) - timedelta(days=days)
        try:
            await asyncio.to_thread(self.log.forget, before.isoformat(timespec="microseconds"))
        except KvstitchError as error:
            logger.warning("old entries of the audit log were not deleted: %s", error.message)


logger = logging.getLogger(__name__)

# What is done by each route that does more than read. A test finds those that are missing.
ACTIONS: Final = {
    "POST /v1/rag/generate": "ask",
    "POST /v1/chat/completions": "ask",
    "POST /v1/completions": "ask",
    "POST /v1/responses": "ask",
    "POST /v1/messages": "ask",
    "POST /v1/messages/count_tokens": "ask",
    "POST /v1/search": "search",
    "POST /v1/rerank": "rerank",
    "POST /v1/embeddings": "embed",
    "POST /retrieval": "search",
    "POST /mcp": "mcp",
    "DELETE /mcp": "end_mcp_session",
    "POST /admin/precompute": "ingest",
    "DELETE /admin/jobs/{job_id}": "cancel",
    "DELETE /admin/documents/{doc_id:path}": "delete",
    "POST /admin/deletions": "delete",
    "DELETE /admin/collections/{collection:path}": "delete",
    "PUT /admin/pins/{doc_id:path}": "pin",
    "DELETE /admin/pins/{doc_id:path}": "unpin",
    "POST /admin/renames": "rename",
    "POST /admin/gate/reset": "reset_gate",
    "POST /ui/sign-in": "sign_in",
}
DISCONNECTED = 499  # as nginx logs it


class AuditTrail:
    """Inside authentication, around everything else."""

    def __init__(self, app: ASGIApp, *, writer: AuditWriter) -> None:
        self._app = app
        self._writer = writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        details = take_notes(scope)
        recorded = refused = False

        async def send_recorded(message: Message) -> None:
            nonlocal recorded, refused
            if message["type"] == "http.response.start" and not recorded:
                recorded = True
                try:
                    await self._record(scope, message["status"], details)
                except KvstitchError as error:
                    refused = True
                    await respond(Request(scope), _unrecorded(error))(scope, receive, send)
            if not refused:
                await send(message)

        try:
            await self._app(scope, receive, send_recorded)
        except BaseException as error:
            if not recorded:
                await self._record_failure(scope, error, details)
            raise

    async def _record(self, scope: Scope, status: int, details: dict[str, Any]) -> None:
        path = getattr(scope.get("route"), "path", "")
        route = f"{scope['method']} {path}"
        # A sign-in that fails is nobody's.
        principal: Principal | None = scope["state"].get("principal")
        if (action := ACTIONS.get(route)) is None or principal is None:
            return
        named = {**scope.get("path_params", {})}
        if "doc_id" in named:
            named["collection"] = Request(scope).query_params.get("collection", "default")
        event = Event(
            tenant=principal.tenant,
            actor=principal.key_id or "anonymous",
            action=action,
            at=now(),
            details={**named, **self._kept(details)},
            route=route,
            status=status,
            request_id=scope["state"].get("request_id", ""),
        )
        await self._writer.append(event)

    def _kept(self, details: dict[str, Any]) -> dict[str, Any]:
        """Return the details with what was asked as the setting says."""
        kept = {name: value for name, value in details.items() if name != QUESTIONS}
        way = self._writer.settings.audit_questions
        if QUESTIONS in details and way != "none":
            texts = details[QUESTIONS]
            told = texts if way == "text" else [_sha256(text) for text in texts]
            name = "question" if way == "text" else "question_sha256"
            kept[name] = told[0] if len(told) == 1 else told
        return kept

    async def _record_failure(
        self, scope: Scope, error: BaseException, details: dict[str, Any]
    ) -> None:
        status = error.status if isinstance(error, KvstitchError) else 500
        if isinstance(error, asyncio.CancelledError):
            status = DISCONNECTED
        try:
            await asyncio.shield(self._record(scope, status, details))
        except KvstitchError as failure:
            logger.error("a call that failed is not in the audit log: %s", failure.message)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _unrecorded(error: KvstitchError) -> KvstitchError:
    """Return the error for a call whose entry could not be written."""
    made = type(error)(
        "the audit log cannot be written, so there is no answer; what was to be changed may have "
        f"been: {error.message}",
        retry_after_s=error.retry_after_s,
    )
    return made
