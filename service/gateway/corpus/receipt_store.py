"""Deletions on disk: the purges that are owed to the worker, and what receipts tell of them.

    open (before the change) ── purge rows ── settled, one call after another ── completed

Knows SQLite; no retriever, worker or HTTP.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.gateway.corpus.job_database import JobDatabase
from service.gateway.corpus.job_records import PendingPurge, Receipt

_MAX_IDS = 100


@dataclass(frozen=True)
class PurgeTarget:
    """A chunk whose KV may have to go: where it was, and the ids that are its content."""

    tenant: str
    collection: str
    doc_id: str
    chunk_id: int
    ids: list[int]


class ReceiptStore:
    """Thread-safe; the database must have been started."""

    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    def open(
        self, tenant: str, collection: str, doc_ids: Sequence[str], notes: Sequence[PurgeTarget]
    ) -> str:
        """Before documents are removed: the receipt, with all purges it waits for."""
        receipt_id, now = uuid.uuid4().hex, time.time()
        with self._database.transaction() as write:
            write.execute(
                "INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?, '{}', '[]', ?, ?)",
                (
                    receipt_id,
                    tenant,
                    collection,
                    json.dumps(list(doc_ids[:_MAX_IDS])),
                    len(doc_ids),
                    len(notes),
                    now,
                    None if notes else now,
                ),
            )
            write.execute(
                "DELETE FROM sizes WHERE tenant = ? AND collection = ? "
                "AND doc_id IN (SELECT value FROM json_each(?))",
                (tenant, collection, json.dumps(list(doc_ids))),
            )
            _owe(write, notes, receipt_id)
        return receipt_id

    def get(self, receipt_id: str, tenant: str) -> Receipt | None:
        with self._database.transaction() as read:
            row = read.execute(
                "SELECT *, (SELECT count(*) FROM purges WHERE purges.receipt_id = r.receipt_id) "
                "AS owed FROM receipts r WHERE receipt_id = ? AND tenant = ?",
                (receipt_id, tenant),
            ).fetchone()
        if row is None:
            return None
        return Receipt(
            receipt_id=receipt_id,
            collection=row["collection"],
            doc_ids=json.loads(row["doc_ids"]),
            documents=row["documents"],
            chunks=row["chunks"],
            kv=json.loads(row["kv"]),
            owed_chunks=row["owed"],
            unreached=json.loads(row["unreached"]) if row["owed"] else [],
            created=row["created"],
            completed=row["completed"],
        )

    def owe(self, notes: Sequence[PurgeTarget]) -> None:
        """Note purges that belong to no receipt: of a changed document, or of one that was
        computed while it was deleted."""
        with self._database.transaction() as write:
            _owe(write, notes, None)

    def owed(self, limit: int, receipt_id: str | None = None) -> list[PendingPurge]:
        """The oldest purges, of one receipt if it is given."""
        with self._database.transaction() as read:
            rows = read.execute(
                "SELECT * FROM purges WHERE ?1 IS NULL OR receipt_id = ?1 ORDER BY number LIMIT ?2",
                (receipt_id, limit),
            ).fetchall()
        return [PendingPurge(**{**dict(row), "ids": json.loads(row["ids"])}) for row in rows]

    def settle(self, purges: Sequence[PendingPurge], copies: Mapping[str, int]) -> None:
        """These purges (of one receipt) were made, or turned out not to be due."""
        with self._database.transaction() as write:
            write.executemany("DELETE FROM purges WHERE number = ?", [(p.number,) for p in purges])
            for receipt_id in {p.receipt_id for p in purges if p.receipt_id is not None}:
                _add(write, receipt_id, copies, [])
                write.execute(
                    "UPDATE receipts SET completed = ? WHERE receipt_id = ? AND completed IS NULL "
                    "AND NOT EXISTS (SELECT 1 FROM purges WHERE receipt_id = receipts.receipt_id)",
                    (time.time(), receipt_id),
                )

    def unreached(
        self, receipt_id: str | None, copies: Mapping[str, int], tiers: Sequence[str]
    ) -> None:
        """Copies went, but not from these tiers: their purges stay owed."""
        if receipt_id is not None:
            with self._database.transaction() as write:
                _add(write, receipt_id, copies, tiers)

    def note_contents(self, tenant: str, chunks: Sequence[tuple[int, list[int]]]) -> None:
        """Remember by content whose KV is stored, before it is: (chunk_id, ids)."""
        with self._database.transaction() as write:
            write.executemany(
                "INSERT OR REPLACE INTO contents VALUES (?, ?)",
                [(chunk_id, _digest(tenant, ids)) for chunk_id, ids in chunks],
            )

    def same_content(self, tenant: str, ids: list[int]) -> list[int]:
        """Chunks of a tenant noted with these very ids: they share one KV, whatever document they
        are of."""
        with self._database.transaction() as read:
            rows = read.execute(
                "SELECT chunk_id FROM contents WHERE digest = ?", (_digest(tenant, ids),)
            )
            return [row["chunk_id"] for row in rows]

    def forget_contents(self, chunk_ids: Sequence[int]) -> None:
        """These chunks are gone."""
        with self._database.transaction() as write:
            write.executemany("DELETE FROM contents WHERE chunk_id = ?", [(c,) for c in chunk_ids])

    def scrub(self) -> None:
        self._database.scrub()


def _owe(write: sqlite3.Connection, notes: Sequence[PurgeTarget], receipt_id: str | None) -> None:
    write.executemany(
        "INSERT INTO purges (receipt_id, tenant, collection, doc_id, chunk_id, ids) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [
            (receipt_id, n.tenant, n.collection, n.doc_id, n.chunk_id, json.dumps(n.ids))
            for n in notes
        ],
    )


def _add(
    write: sqlite3.Connection, receipt_id: str, copies: Mapping[str, int], unreached: Sequence[str]
) -> None:
    row = write.execute("SELECT kv FROM receipts WHERE receipt_id = ?", (receipt_id,)).fetchone()
    counts = Counter(json.loads(row["kv"]))
    counts.update(copies)
    write.execute(
        "UPDATE receipts SET kv = ?, unreached = ? WHERE receipt_id = ?",
        (json.dumps(counts), json.dumps(list(unreached)), receipt_id),
    )


def _digest(tenant: str, ids: list[int]) -> bytes:
    # Unkeyed for the unnamed tenant, as the first release did.
    key = hashlib.sha256(tenant.encode()).digest() if tenant else b""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16, key=key).digest()
