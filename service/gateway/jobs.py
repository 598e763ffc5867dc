"""Ingest jobs on disk: accepted means committed. Knows SQLite; no retriever, worker or HTTP.

    document   pending ── chunked, embedded, indexed ──> indexed ── KV stored ──> done
                  └──────────────── error ────────────────┴──────────────────────> failed

A job is queued, then running, then succeeded, or failed if any of its documents failed. The state
is derived from the documents, so it survives a crash at any point. Purges that are still owed to
the worker are kept here as well.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.errors import KvstitchError
from service.gateway.job_records import DocumentError, Job, OwedPurge, Spooled

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    job_id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE,
    created REAL NOT NULL, updated REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL REFERENCES jobs,
    doc_id TEXT NOT NULL, payload TEXT, state TEXT NOT NULL DEFAULT 'pending',
    change TEXT, chunks INTEGER NOT NULL DEFAULT 0, error TEXT
);
CREATE INDEX IF NOT EXISTS documents_of_job ON documents (job_id);
CREATE INDEX IF NOT EXISTS documents_open ON documents (state, number)
    WHERE state IN ('pending', 'indexed');
CREATE TABLE IF NOT EXISTS purges (
    number INTEGER PRIMARY KEY AUTOINCREMENT, doc_id TEXT NOT NULL, chunk_id INTEGER NOT NULL,
    ids TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS contents (chunk_id INTEGER PRIMARY KEY, digest BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS contents_by_digest ON contents (digest);
"""
_MAX_ERRORS = 100


class JobStore:
    """jobs.sqlite3, opened by start(). Thread-safe; every method blocks for a disk write or two."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def start(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self._path, check_same_thread=False, isolation_level=None, timeout=10
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        self._connection = connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # -- jobs ------------------------------------------------------------------------------------

    def add(self, documents: Sequence[dict[str, Any]]) -> str:
        """Store a job of documents ({doc_id, text, title, metadata}); returns its id."""
        job_id, now = uuid.uuid4().hex, time.time()
        with self._write() as write:
            write.execute(
                "INSERT INTO jobs SELECT ?, coalesce(max(number), 0) + 1, ?, ? FROM jobs",
                (job_id, now, now),
            )
            write.executemany(
                "INSERT INTO documents (job_id, doc_id, payload) VALUES (?, ?, ?)",
                [(job_id, d["doc_id"], json.dumps(d, ensure_ascii=False)) for d in documents],
            )
        return job_id

    def get(self, job_id: str) -> Job | None:
        with self._write() as read:
            row = read.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
            if row is None:
                return None
            states = _counts(read, "state", job_id)
            changes = _counts(read, "change", job_id)
            chunks = read.execute(
                "SELECT coalesce(sum(chunks), 0) FROM documents WHERE job_id = ?", (job_id,)
            ).fetchone()[0]
            errors = read.execute(
                "SELECT doc_id, error FROM documents WHERE job_id = ? AND error IS NOT NULL "
                "ORDER BY number LIMIT ?",
                (job_id, _MAX_ERRORS),
            ).fetchall()
        return Job(
            job_id=job_id,
            state=_state(states),
            created=row["created"],
            updated=row["updated"],
            total=sum(states.values()),
            done=states.get("done", 0),
            failed=states.get("failed", 0),
            chunks=chunks,
            changes=changes,
            errors=[DocumentError(e["doc_id"], e["error"]) for e in errors],
        )

    def states(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with self._write() as read:
            rows = read.execute(
                "SELECT job_id, state, count(*) AS n FROM documents GROUP BY job_id, state"
            ).fetchall()
        jobs: dict[str, dict[str, int]] = {}
        for row in rows:
            jobs.setdefault(row["job_id"], {})[row["state"]] = row["n"]
        out: dict[str, int] = {}
        for states in jobs.values():
            out[_state(states)] = out.get(_state(states), 0) + 1
        return out

    # -- documents -------------------------------------------------------------------------------

    def pending(self, limit: int, max_chars: int) -> list[Spooled]:
        """The next documents to index, oldest first: at least one, about `max_chars` of text."""
        return self._open("pending", limit, max_chars)

    def indexed(self, limit: int) -> list[Spooled]:
        """The next documents whose KV is to be computed."""
        return self._open("indexed", limit, None)

    def set_indexed(self, documents: Sequence[tuple[int, str, int]]) -> None:
        """(number, change, chunks) of documents that are in the catalog and the index now."""
        values = [(change, chunks, number) for number, change, chunks in documents]
        self._set("state = 'indexed', payload = NULL, change = ?, chunks = ?", values)

    def set_done(self, numbers: Sequence[int]) -> None:
        self._set("state = 'done'", [(number,) for number in numbers])

    def set_failed(self, documents: Sequence[tuple[int, str]]) -> None:
        """(number, what is wrong)."""
        values = [(error, number) for number, error in documents]
        self._set("state = 'failed', payload = NULL, error = ?", values)

    # -- purges ----------------------------------------------------------------------------------

    def owe_purge(self, chunks: Sequence[tuple[str, int, list[int]]]) -> None:
        """Note (doc_id, chunk_id, ids) before the chunks are removed."""
        with self._write() as write:
            write.executemany(
                "INSERT INTO purges (doc_id, chunk_id, ids) VALUES (?, ?, ?)",
                [(doc_id, chunk_id, json.dumps(ids)) for doc_id, chunk_id, ids in chunks],
            )

    def owed_purges(self, limit: int, doc_id: str | None = None) -> list[OwedPurge]:
        """The oldest purges, of one document if it is given."""
        with self._write() as read:
            rows = read.execute(
                "SELECT * FROM purges WHERE ? IN (doc_id, '') ORDER BY number LIMIT ?",
                (doc_id or "", limit),
            )
            return [
                OwedPurge(r["number"], r["doc_id"], r["chunk_id"], json.loads(r["ids"]))
                for r in rows
            ]

    def settle_purges(self, numbers: Sequence[int]) -> None:
        """The purges were made, or turned out not to be due."""
        with self._write() as write:
            write.executemany("DELETE FROM purges WHERE number = ?", [(n,) for n in numbers])

    def note_contents(self, chunks: Sequence[tuple[int, list[int]]]) -> None:
        """Remember by content whose KV is stored, before it is: (chunk_id, ids)."""
        with self._write() as write:
            write.executemany(
                "INSERT OR REPLACE INTO contents VALUES (?, ?)",
                [(chunk_id, _digest(ids)) for chunk_id, ids in chunks],
            )

    def same_content(self, ids: list[int]) -> list[int]:
        """Chunks noted with these very ids: they share one KV, whatever document they are of."""
        with self._write() as read:
            rows = read.execute("SELECT chunk_id FROM contents WHERE digest = ?", (_digest(ids),))
            return [row["chunk_id"] for row in rows]

    def forget_contents(self, chunk_ids: Sequence[int]) -> None:
        """These chunks are gone."""
        with self._write() as write:
            write.executemany("DELETE FROM contents WHERE chunk_id = ?", [(c,) for c in chunk_ids])

    # -- inside ----------------------------------------------------------------------------------

    def _open(self, state: str, limit: int, max_chars: int | None) -> list[Spooled]:
        out: list[Spooled] = []
        chars = 0
        with self._write() as read:
            rows = read.execute(
                "SELECT number, job_id, doc_id, payload FROM documents WHERE state = ? "
                "ORDER BY number LIMIT ?",
                (state, limit),
            )
            for row in rows:
                chars += len(row["payload"] or "")
                if out and max_chars is not None and chars > max_chars:
                    break
                payload = None if row["payload"] is None else json.loads(row["payload"])
                out.append(Spooled(row["number"], row["job_id"], row["doc_id"], payload))
        return out

    def _set(self, assignment: str, values: Sequence[tuple[Any, ...]]) -> None:
        """The last value of each row is the document's number."""
        with self._write() as write:
            write.executemany(f"UPDATE documents SET {assignment} WHERE number = ?", values)
            write.executemany(
                "UPDATE jobs SET updated = ? "
                "WHERE job_id = (SELECT job_id FROM documents WHERE number = ?)",
                [(time.time(), row[-1]) for row in values],
            )

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction; the thread that holds it is alone."""
        with self._lock:
            if self._connection is None:
                raise KvstitchError("the job store is closed")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def _counts(connection: sqlite3.Connection, column: str, job_id: str) -> dict[str, int]:
    rows = connection.execute(
        f"SELECT {column} AS value, count(*) AS n FROM documents "
        f"WHERE job_id = ? AND {column} IS NOT NULL GROUP BY {column}",
        (job_id,),
    )
    return {row["value"]: row["n"] for row in rows}


def _state(documents: dict[str, int]) -> str:
    if set(documents) == {"pending"}:
        return "queued"
    if "pending" in documents or "indexed" in documents:
        return "running"
    return "failed" if "failed" in documents else "succeeded"


def _digest(ids: list[int]) -> bytes:
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16).digest()
