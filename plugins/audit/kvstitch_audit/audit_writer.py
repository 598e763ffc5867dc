"""Appends entries for coroutines: those that come while others are written go together.

Every now and then it forgets what is older than `audit_retention_days`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from kvstitch_audit.audit_log import AuditLog
from kvstitch_audit.chain import Event, Head
from service.errors import KvstitchError

FORGET_EVERY_S = 3600.0
logger = logging.getLogger(__name__)


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
