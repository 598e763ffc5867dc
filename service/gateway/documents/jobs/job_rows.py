"""Rows of documents and jobs: which of them a gateway takes, and the state of a job that they make.

Documents of a shared database are taken by one gateway at a time, by a row lock that others skip. A
document stays with its gateway while that gives signs of life. A gateway whose documents went on
with another cannot change them any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from retriever.sql.connection import Connection, Row
from service.gateway.documents.jobs.job_database import JobDatabase
from service.gateway.documents.jobs.job_records import (
    OPEN_STATES,
    DocumentError,
    IngestDocument,
    Job,
)

MAX_ERRORS = 100  # that a job shows unless more are asked for
BYTES_PER_TOKEN = 4  # of a document that is not indexed yet: a guess


def lock_jobs(write: Connection, job_ids: Sequence[str]) -> None:
    """Before documents of these jobs change: let nobody else compute the jobs' states meanwhile."""
    write.execute(
        f"SELECT 1 FROM jobs WHERE job_id {write.in_texts} ORDER BY job_id{write.for_update}",
        (write.listed(job_ids),),
    )


def update_job_states(write: Connection, job_ids: Sequence[str]) -> list[str]:
    """Compute the states of jobs from those of their documents; returns those that end by it."""
    ended: list[str] = []
    for job_id in sorted(set(job_ids)):
        query = "SELECT cancelled, state FROM jobs WHERE job_id = ?"
        job = write.execute(query, (job_id,)).fetchone()
        state = _job_state(_counts(write, "state", job_id), bool(job["cancelled"]))
        if job["state"] in OPEN_STATES and state not in OPEN_STATES:
            ended.append(job_id)
        write.execute(
            "UPDATE jobs SET state = ?, updated = ? WHERE job_id = ?",
            (state, time.time(), job_id),
        )
    return ended


def load_job(read: Connection, row: Row, max_errors: int = MAX_ERRORS) -> Job:
    """A job from its row in `jobs` and the rows of its documents, with so many of its errors."""
    job_id = row["job_id"]
    states = _counts(read, "state", job_id)
    chunks = read.execute(
        "SELECT coalesce(sum(chunks), 0) FROM documents WHERE job_id = ?", (job_id,)
    ).fetchone()[0]
    errors = read.execute(
        "SELECT doc_id, error FROM documents WHERE job_id = ? AND error IS NOT NULL "
        "ORDER BY number LIMIT ?",
        (job_id, max_errors),
    ).fetchall()
    return Job(
        job_id=job_id,
        state=row["state"],
        created=row["created"],
        updated=row["updated"],
        total=sum(states.values()),
        done=states.get("done", 0),
        failed=states.get("failed", 0) + states.get("dead", 0),
        cancelled=states.get("cancelled", 0),
        chunks=chunks,
        changes=_counts(read, "change", job_id, "state NOT IN ('failed', 'dead')"),
        errors=[DocumentError(e["doc_id"], e["error"]) for e in errors],
        tokens_ahead=_tokens_ahead(read, job_id) if row["state"] in OPEN_STATES else 0,
    )


def _tokens_ahead(read: Connection, job_id: str) -> int:
    """Tokens of the documents that are not done up to the job's last one: the oldest come first."""
    (tokens,) = read.execute(
        "SELECT coalesce(sum(CASE state WHEN 'indexed' THEN tokens ELSE bytes / ? END), 0) "
        "FROM documents WHERE state IN ('pending', 'indexed') "
        "AND number <= (SELECT max(number) FROM documents WHERE job_id = ?)",
        (BYTES_PER_TOKEN, job_id),
    ).fetchone()
    return int(tokens)


def _counts(
    connection: Connection, column: str, job_id: str, where: str = "true"
) -> dict[str, int]:
    """How many of a job's documents have each value of a column."""
    rows = connection.execute(
        f"SELECT {column} AS value, count(*) AS n FROM documents "
        f"WHERE job_id = ? AND {column} IS NOT NULL AND {where} GROUP BY {column}",
        (job_id,),
    )
    return {row["value"]: row["n"] for row in rows}


def _job_state(documents: dict[str, int], cancelled: bool) -> str:
    """`documents`: how many are in each state."""
    if set(documents) == {"pending"}:
        return "queued"
    if "pending" in documents or "indexed" in documents:
        return "running"
    if cancelled:
        return "cancelled"
    for state in ("dead", "failed"):
        if state in documents:
            return state
    return "cancelled" if set(documents) == {"cancelled"} else "succeeded"


# Not while an earlier revision of the same document is to be indexed, by whomever: its store would
# come after this one's, and undo it.
_FIRST = """
    AND NOT EXISTS (
        SELECT 1 FROM documents AS earlier JOIN jobs AS sent ON sent.job_id = earlier.job_id
        WHERE earlier.state = 'pending' AND earlier.number < documents.number
        AND earlier.doc_id = documents.doc_id AND earlier.collection = documents.collection
        AND sent.tenant = (SELECT tenant FROM jobs WHERE jobs.job_id = documents.job_id))
"""


def take(write: Connection, gateway_id: str, state: str, limit: int) -> None:
    """Take documents in this state, the oldest first, until this gateway has so many."""
    (held,) = write.execute(
        "SELECT count(*) FROM documents WHERE state = ? AND owner = ?", (state, gateway_id)
    ).fetchone()
    if held < limit:
        first = _FIRST if state == "pending" else ""
        write.execute(
            "UPDATE documents SET owner = ? WHERE number IN (SELECT number FROM documents "
            f"WHERE state = ? AND owner = '' {first} ORDER BY number LIMIT ?{write.skip_locked})",
            (gateway_id, state, limit - held),
        )


def record_sizes(database: JobDatabase, documents: Iterable[IngestDocument]) -> None:
    """Note the sizes of documents that came in without a job. Blocks."""
    with database.transaction() as write:
        write.executemany(
            "INSERT INTO sizes VALUES (?, ?, ?, ?) ON CONFLICT (tenant, collection, doc_id) "
            "DO UPDATE SET bytes = excluded.bytes",
            sorted((*item.key, item.size) for item in documents),
        )
