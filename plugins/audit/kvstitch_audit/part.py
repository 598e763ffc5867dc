"""The audit log of a gateway: a middleware that writes it, and /admin/audit, which reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from kvstitch.service.errors import Conflict, Forbidden
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.http.dependencies import GatewayDep, Limit, require_scope
from kvstitch.service.gateway.http.openapi import error_response
from kvstitch.service.plugins import GatewayPart
from kvstitch_audit import FILE
from kvstitch_audit.audit_log import AuditLog, change, record_changes, recorded
from kvstitch_audit.audit_trail import AuditTrail, AuditWriter

Auditing = Annotated[Principal, Depends(require_scope("audit"))]
router = APIRouter(prefix="/admin", tags=["operations"])


class NoAuditLog(Conflict):
    code = "no_audit_log"


class AuditEntry(BaseModel):
    """`previous` is the hash of the entry before, `hash` the SHA-256 of this one without it."""

    tenant: str
    number: int
    at: str
    actor: str
    action: str
    details: dict[str, Any]
    route: str
    status: int | None
    request_id: str
    previous: str
    hash: str


class AuditHead(BaseModel):
    """The end of the tenant's entries: note it where nobody can change it, to verify them by."""

    number: int
    hash: str


class AuditPage(BaseModel):
    entries: list[AuditEntry]
    head: AuditHead
    next: int | None


class AuditPart(GatewayPart):
    """The log of one gateway, where its settings ask for one; the route is always there."""

    routers = (router,)

    def __init__(self, gateway: Gateway) -> None:
        self.writer: AuditWriter | None = None
        settings: Any = gateway.settings
        self._settings = settings
        self._own_file = gateway.shared_database is None
        if self._settings.audit:
            log = AuditLog(gateway.shared_database or gateway.settings.data_dir / FILE)
            self.writer = AuditWriter(log, self._settings)
            self.middleware = ((AuditTrail, {"writer": self.writer}),)

    async def start(self) -> None:
        if self.writer is not None:
            await asyncio.to_thread(self.writer.log.start)
            await asyncio.to_thread(record_changes, self.writer.log, self._settings)

    async def close(self) -> None:
        if self.writer is not None:
            await self.writer.close()
            if self._own_file:
                await asyncio.to_thread(self.writer.log.close)

    async def settings_changed(
        self, settings: Any, changed: Sequence[str], need_restart: Sequence[str]
    ) -> None:
        if self.writer is not None:
            event = change(recorded(settings), changed, need_restart=need_restart)
            await self.writer.append(event)
            self.writer.settings = settings


def part_of(gateway: Gateway) -> AuditPart:
    return next(part for part in gateway.parts if isinstance(part, AuditPart))


@router.get("/audit", responses={409: error_response(409)})
async def audit(
    principal: Auditing,
    gateway: GatewayDep,
    after: Annotated[int, Query(ge=0, description="entries with higher numbers")] = 0,
    limit: Limit = 1000,
) -> AuditPage:
    """Entries of the audit log, oldest first; pass `next` as `after` for the next page."""
    writer = part_of(gateway).writer
    if writer is None:
        raise NoAuditLog("there is no audit log here: it is kept where KVSTITCH_AUDIT is true")
    if principal.view.groups is not None:
        raise Forbidden(
            "the audit log names documents of all groups and who asked what: use a key or token "
            "that reads all documents of its tenant"
        )
    head, entries = await writer.read(principal.tenant, after, limit)
    return AuditPage(
        entries=entries,
        head=AuditHead(number=head.number, hash=head.hash),
        next=entries[-1]["number"] if len(entries) == limit else None,
    )
