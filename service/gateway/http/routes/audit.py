"""/admin/audit: who did what in the tenant of the sender."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.errors import Forbidden, NoAuditLog
from service.gateway.http.dependencies import Auditing, GatewayDep, Limit
from service.gateway.schemas.admin import AuditHead, AuditPage

router = APIRouter(prefix="/admin", tags=["operations"])


@router.get("/audit")
async def audit(
    principal: Auditing,
    gateway: GatewayDep,
    after: Annotated[int, Query(ge=0, description="entries with higher numbers")] = 0,
    limit: Limit = 1000,
) -> AuditPage:
    """Entries of the audit log, oldest first; pass `next` as `after` for the next page."""
    if gateway.audit is None:
        raise NoAuditLog("there is no audit log here: it is kept where KVSTITCH_AUDIT is true")
    if principal.view.groups is not None:
        raise Forbidden(
            "the audit log names documents of all groups and who asked what: use a key or token "
            "that reads all documents of its tenant"
        )
    head, entries = await gateway.audit.read(principal.tenant, after, limit)
    return AuditPage(
        entries=entries,
        head=AuditHead(number=head.number, hash=head.hash),
        next=entries[-1]["number"] if len(entries) == limit else None,
    )
