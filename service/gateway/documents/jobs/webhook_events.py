"""Events that are owed to the webhook, on disk: one per job that has ended.

An event is written in the transaction that ends its job, and deleted when it was delivered or given
up. So a crash loses none, and one that was delivered just before a crash is delivered again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from retriever.sql.connection import Connection
from service.gateway.documents.jobs.job_database import JobDatabase
from service.gateway.documents.jobs.job_records import Job
from service.gateway.documents.jobs.job_state import load_job

LEASE_S = 300.0  # more than the attempts of a batch take


@dataclass(frozen=True)
class Event:
    """An event that is to be delivered.

    Attributes:
        event_id: The same at every attempt.
        body: JSON, the same at every attempt.
        attempts: How often it was tried.
        created: When its job ended, in Unix seconds.
    """

    event_id: str
    body: bytes
    attempts: int
    created: float


def add_events(write: Connection, job_ids: Sequence[str]) -> None:
    """Owe an event for each of these jobs, which end in this transaction."""
    now = time.time()
    for job_id in job_ids:
        row = write.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        event_id = uuid.uuid4().hex
        body = _body(event_id, now, row["tenant"], load_job(write, row, 0))
        write.execute("INSERT INTO events VALUES (?, ?, 0, ?, ?)", (event_id, body, now, now))


class EventStore:
    """Thread-safe; every call blocks. The database must have been started."""

    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    def due(self, now: float, limit: int) -> list[Event]:
        """The events whose time has come, oldest first; other gateways leave them alone for
        `LEASE_S`."""
        with self._database.transaction() as write:
            rows = write.execute(
                "SELECT event_id, body, attempts, created FROM events WHERE due <= ? "
                f"ORDER BY created, event_id LIMIT ?{write.skip_locked}",
                (now, limit),
            ).fetchall()
            if self._database.gateway_id:
                write.executemany(
                    "UPDATE events SET due = ? WHERE event_id = ?",
                    [(now + LEASE_S, row["event_id"]) for row in rows],
                )
        return [Event(**row) for row in rows]

    def settle(self, event: Event) -> None:
        """It was delivered, or is given up."""
        with self._database.transaction() as write:
            write.execute("DELETE FROM events WHERE event_id = ?", (event.event_id,))

    def postpone(self, event: Event, due: float) -> None:
        """It was tried once more in vain; it is due again at a time in Unix seconds."""
        with self._database.transaction() as write:
            write.execute(
                "UPDATE events SET attempts = attempts + 1, due = ? WHERE event_id = ?",
                (due, event.event_id),
            )


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
