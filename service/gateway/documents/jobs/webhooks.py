"""Events for the webhook: owed on disk, one per job that has ended, and delivered at least once.

An event is written in the transaction that ends its job, and deleted when it was delivered or given
up. So a crash loses none, and one that was delivered just before a crash is delivered again.

    due events ── POST, signed ── 2xx: delivered
                       └── else: again after 5 s, 10 s, 20 s … 1 h, for a day; then given up
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from sqlalchemy import Connection, select

from retriever.sql.expressions import among
from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.jobs.job_records import Job
from service.gateway.documents.jobs.job_rows import JOB, load_job
from service.gateway.encryption.sealed_rows import SealedRows
from service.gateway.prometheus import GatewayMetrics
from service.gateway.service_database import ServiceDatabase
from service.gateway.tables import events, jobs

LEASE_S = 300.0  # more than the attempts of a batch take


@dataclass(frozen=True)
class Event:
    """An event that is to be delivered."""

    event_id: str
    body: bytes
    attempts: int
    created: float


def add_events(write: Connection, job_ids: Sequence[str]) -> None:
    """Owe an event for each of these jobs, which end in this transaction."""
    now = time.time()
    for row in write.execute(JOB.where(among(jobs.c.job_id, job_ids))).all():
        event_id = uuid.uuid4().hex
        body = _body(event_id, now, row.tenant, load_job(write, row, SealedRows(), 0))
        owed = {"event_id": event_id, "body": body, "attempts": 0, "created": now, "due": now}
        write.execute(events.insert(), owed)


class EventStore:
    """Thread-safe; every call blocks. The database must have been started."""

    def __init__(self, database: ServiceDatabase) -> None:
        self._database = database

    def due(self, now: float, limit: int) -> list[Event]:
        """Return events whose time has come, oldest first; other gateways leave them alone for
        `LEASE_S`."""
        query = select(*events.c["event_id", "body", "attempts", "created"])
        query = query.where(events.c.due <= now).order_by(events.c.created, events.c.event_id)
        with self._database.write() as write:
            locked = query.limit(limit).with_for_update(skip_locked=True)
            found = [Event(*row) for row in write.execute(locked)]
            if self._database.shared:
                taken = among(events.c.event_id, [each.event_id for each in found])
                write.execute(events.update().where(taken).values(due=now + LEASE_S))
        return found

    def settle(self, event: Event) -> None:
        """Forget an event that was delivered, or is given up."""
        with self._database.write() as write:
            write.execute(events.delete().where(events.c.event_id == event.event_id))

    def postpone(self, event: Event, due: float) -> None:
        """Count an attempt in vain; the next one is due at a time in Unix seconds."""
        change = events.update().where(events.c.event_id == event.event_id)
        with self._database.write() as write:
            write.execute(change.values(attempts=events.c.attempts + 1, due=due))


def _body(event_id: str, created: float, tenant: str, job: Job) -> bytes:
    content = {
        "event_id": event_id,
        "type": "job.ended",
        "created": created,
        "tenant": tenant,
        "job": {
            "job_id": job.job_id,
            "state": job.state,
            "progress": {
                "done": job.done,
                "failed": job.failed,
                "cancelled": job.cancelled,
                "total": job.total,
            },
            "chunks": job.chunks,
            "changes": job.changes,
            "created": job.created,
            "updated": job.updated,
        },
    }
    return json.dumps(content).encode()


logger = logging.getLogger(__name__)

POLL_S = 1.0
BATCH_EVENTS = 20
TIMEOUT_S = 10.0
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 3600.0
GIVE_UP_S = 24 * 3600.0  # after the job's end


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the header Kvstitch-Signature: HMAC-SHA256 over timestamp.body."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


class WebhookSender:
    """Works off what is owed while it is started.

    Args:
        events: What is owed.
        url: Where to. The operator sets it, so private addresses are allowed.
        secret: Signs every request.
        metrics: Counts what became of the attempts.
        first_retry_s: Pause after the first attempt that failed; it doubles with each.
        give_up_s: Seconds after which an event is not tried again.
    """

    def __init__(
        self,
        events: EventStore,
        url: str,
        secret: str,
        metrics: GatewayMetrics,
        *,
        first_retry_s: float = FIRST_RETRY_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._events = events
        self._url = url
        self._secret = secret
        self._metrics = metrics
        self._first_retry_s = first_retry_s
        self._give_up_s = give_up_s
        self._loop = BackgroundLoop("webhook", self._step, min(POLL_S, first_retry_s))

    def start(self) -> None:
        self._loop.start()

    async def close(self) -> None:
        """Cancel the attempt under way; it is made again after the next start."""
        await self._loop.close()

    async def _step(self) -> bool:
        due = await asyncio.to_thread(self._events.due, time.time(), BATCH_EVENTS)
        if not due:
            return False
        # No proxy and no credentials of the environment: the URL is all there is to it.
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as http:
            for event in due:
                await self._deliver(http, event)
        return True

    async def _deliver(self, http: httpx.AsyncClient, event: Event) -> None:
        fault = await self._attempt(http, event)
        if fault is None:
            self._metrics.webhooks.labels("delivered").inc()
            await asyncio.to_thread(self._events.settle, event)
        elif time.time() - event.created >= self._give_up_s:
            self._metrics.webhooks.labels("failed").inc()
            await asyncio.to_thread(self._events.settle, event)
            logger.error(
                "webhook event %s is given up after %d attempts: %s",
                event.event_id, event.attempts + 1, fault,
            )  # fmt: skip
        else:
            pause = min(self._first_retry_s * 2 ** min(event.attempts, 30), LONGEST_RETRY_S)
            # Replicas that were refused together do not come back together.
            due = time.time() + pause * random.uniform(0.8, 1.2)
            self._metrics.webhooks.labels("retried").inc()
            await asyncio.to_thread(self._events.postpone, event, due)
            logger.warning("webhook event %s is tried again: %s", event.event_id, fault)

    async def _attempt(self, http: httpx.AsyncClient, event: Event) -> str | None:
        """Return why it was not delivered; None if it was. Redirects are not followed."""
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "kvstitch-webhook",
            "Kvstitch-Event-Id": event.event_id,
            "Kvstitch-Timestamp": timestamp,
            "Kvstitch-Signature": signature(self._secret, timestamp, event.body),
        }
        try:
            # Only the status counts: a body of any length is not read.
            async with http.stream(
                "POST", self._url, content=event.body, headers=headers
            ) as response:
                return None if response.is_success else f"HTTP {response.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"
