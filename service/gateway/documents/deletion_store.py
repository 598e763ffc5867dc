"""Deletions on disk: the pending purges, and the receipts that record their results.

    receipt opened, before the change ── pending purges ── settled one by one ── receipt completed

It also remembers which chunks have which content, because chunks with the same token ids share
one KV.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from retriever.sql.connection import Connection, Row
from service.gateway.documents import membership
from service.gateway.documents.chunk_kv import ChunkKV
from service.gateway.documents.jobs.job_database import JobDatabase
from service.messages.requests import ChunkTokens

_MAX_DOC_IDS = 100


@dataclass(frozen=True, kw_only=True)
class PendingPurge(ChunkKV):
    """A purge that is on disk and not done; its chunk may still be in the catalog."""

    number: int
    receipt_id: str | None
    shared: bool = False  # another chunk has the same ids, so only the copies are deleted


@dataclass(frozen=True)
class Receipt:
    """What a deletion removed.

    Attributes:
        receipt_id: Its id.
        collection: Of the documents.
        doc_ids: The first hundred of them.
        documents: How many documents were deleted.
        chunks: How many chunks they had.
        kv: Deleted copies of KV per tier.
        owed_chunks: Chunks whose KV may still be stored, because the worker or a tier is away.
        unreached: Those tiers.
        created: Unix seconds.
        completed: Unix seconds; None while purges are pending.
    """

    receipt_id: str
    collection: str
    doc_ids: list[str]
    documents: int
    chunks: int
    kv: dict[str, int]
    owed_chunks: int
    unreached: list[str]
    created: float
    completed: float | None


class DeletionStore:
    """Thread-safe; every call blocks. The database must have been started."""

    def __init__(self, database: JobDatabase) -> None:
        self._database = database
        self._shared = bool(database.gateway_id)

    # -- receipts --------------------------------------------------------------------------------

    def open_receipt(
        self, tenant: str, collection: str, doc_ids: Sequence[str], targets: Sequence[ChunkKV]
    ) -> str:
        """Write a receipt and its pending purges, before the documents are removed.

        Returns:
            The receipt's id.
        """
        receipt_id, now = uuid.uuid4().hex, time.time()
        with self._database.transaction() as write:
            write.execute(
                "INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?, '{}', '[]', ?, ?)",
                (
                    receipt_id,
                    tenant,
                    collection,
                    json.dumps(list(doc_ids[:_MAX_DOC_IDS])),
                    len(doc_ids),
                    sum(bool(target.ids) for target in targets),
                    now,
                    None if targets else now,
                ),
            )
            write.execute(
                "DELETE FROM sizes WHERE tenant = ? AND collection = ? "
                f"AND doc_id {write.in_texts}",
                (tenant, collection, write.listed(doc_ids)),
            )
            _insert_purges(write, targets, receipt_id)
        return receipt_id

    def receipt(self, receipt_id: str, tenant: str) -> Receipt | None:
        with self._database.transaction() as read:
            row = read.execute(
                "SELECT *, (SELECT count(*) FROM purges WHERE purges.receipt_id = r.receipt_id) "
                "AS owed FROM receipts r WHERE receipt_id = ? AND tenant = ?",
                (receipt_id, tenant),
            ).fetchone()
            if row is None:
                return None
            silent = membership.silent_owing(read, receipt_id) if self._shared else []
        unreached = [*json.loads(row["unreached"]), *(f"gateway {name}" for name in silent)]
        return Receipt(
            receipt_id=receipt_id,
            collection=row["collection"],
            doc_ids=json.loads(row["doc_ids"]),
            documents=row["documents"],
            chunks=row["chunks"],
            kv=json.loads(row["kv"]),
            owed_chunks=row["owed"],
            unreached=unreached if row["owed"] else [],
            created=row["created"],
            completed=row["completed"],
        )

    # -- pending purges --------------------------------------------------------------------------

    def add_purges(self, targets: Sequence[ChunkKV]) -> None:
        """Add purges that belong to no receipt, e.g. of a document that was replaced."""
        with self._database.transaction() as write:
            _insert_purges(write, targets, None)

    def pending_purges(self, limit: int, receipt_id: str | None = None) -> list[PendingPurge]:
        """The oldest purges that this gateway has not made; only those of one receipt if it is
        given."""
        where: list[str] = []
        values: list[str] = []
        if receipt_id is not None:
            where.append("receipt_id = ?")
            values.append(receipt_id)
        if self._shared:
            where.append(
                "NOT EXISTS (SELECT 1 FROM confirmations "
                "WHERE confirmations.number = purges.number AND gateway_id = ?)"
            )
            values.append(self._database.gateway_id)
        with self._database.transaction() as read:
            rows = read.execute(
                f"SELECT * FROM purges WHERE {' AND '.join(where) or 'true'} "
                "ORDER BY number LIMIT ?",
                (*values, limit),
            ).fetchall()
        return [_pending(row) for row in rows]

    def settle(self, purges: Sequence[PendingPurge], copies: Mapping[str, int]) -> None:
        """This gateway has made purges: remove those that no other still has to make.

        Args:
            purges: All of them of one receipt, or all of none.
            copies: Deleted copies of KV per tier.
        """
        numbers = [purge.number for purge in purges]
        with self._database.transaction() as write:
            if self._shared:
                numbers = self._confirm(write, numbers)
            self._remove(write, purges, numbers, copies)

    def drop(self, purges: Sequence[PendingPurge]) -> None:
        """Remove purges that are not needed after all, by nobody."""
        with self._database.transaction() as write:
            self._remove(write, purges, [purge.number for purge in purges], {})

    def _confirm(self, write: Connection, numbers: list[int]) -> list[int]:
        """Note that this gateway has made purges; returns those that all have made."""
        rows = write.execute(
            f"SELECT number FROM purges WHERE number {write.in_numbers} ORDER BY number"
            f"{write.for_update}",
            (write.listed(numbers),),
        ).fetchall()
        write.executemany(
            "INSERT INTO confirmations VALUES (?, ?) ON CONFLICT DO NOTHING",
            [(row["number"], self._database.gateway_id) for row in rows],
        )
        return membership.settle_made(write, numbers)

    def _remove(
        self,
        write: Connection,
        purges: Sequence[PendingPurge],
        numbers: Sequence[int],
        copies: Mapping[str, int],
    ) -> None:
        write.executemany("DELETE FROM purges WHERE number = ?", [(n,) for n in numbers])
        for receipt_id in sorted({p.receipt_id for p in purges if p.receipt_id is not None}):
            _add_to_receipt(write, receipt_id, copies, [])
            write.execute(
                "UPDATE receipts SET completed = ? WHERE receipt_id = ? AND completed IS NULL "
                "AND NOT EXISTS (SELECT 1 FROM purges WHERE receipt_id = receipts.receipt_id)",
                (time.time(), receipt_id),
            )

    def record_unreached(
        self, receipt_id: str | None, copies: Mapping[str, int], tiers: Sequence[str]
    ) -> None:
        """Copies were deleted, but not in these tiers; the purges stay pending."""
        if receipt_id is not None:
            with self._database.transaction() as write:
                _add_to_receipt(write, receipt_id, copies, tiers)

    # -- contents --------------------------------------------------------------------------------

    def record_contents(self, targets: Sequence[ChunkKV]) -> None:
        """Remember the content of chunks, before their KV is stored."""
        with self._database.transaction() as write:
            write.executemany(
                "INSERT INTO contents VALUES (?, ?) "
                "ON CONFLICT (chunk_id) DO UPDATE SET digest = excluded.digest",
                [(target.chunk_id, _digest(target.tenant, target.ids)) for target in targets],
            )

    def chunks_with_content(self, tenant: str, ids: list[int]) -> list[int]:
        """Ids of a tenant's chunks with exactly these token ids: all of them share one KV."""
        with self._database.transaction() as read:
            rows = read.execute(
                "SELECT chunk_id FROM contents WHERE digest = ?", (_digest(tenant, ids),)
            )
            return [row["chunk_id"] for row in rows]

    def forget_contents(self, chunk_ids: Sequence[int]) -> None:
        with self._database.transaction() as write:
            write.executemany("DELETE FROM contents WHERE chunk_id = ?", [(c,) for c in chunk_ids])

    def scrub(self) -> None:
        """Overwrite what was deleted in the database's files."""
        self._database.scrub()


def _insert_purges(write: Connection, targets: Sequence[ChunkKV], receipt_id: str | None) -> None:
    write.executemany(
        "INSERT INTO purges (receipt_id, tenant, collection, doc_id, chunk_id, ids, copies) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                receipt_id,
                target.tenant,
                target.collection,
                target.doc_id,
                target.chunk_id,
                json.dumps(target.ids),
                json.dumps([asdict(copy) for copy in target.copies]),
            )
            for target in targets
        ],
    )


def _pending(row: Row) -> PendingPurge:
    copies = [ChunkTokens(**copy) for copy in json.loads(row["copies"])]
    return PendingPurge(**{**dict(row), "ids": json.loads(row["ids"]), "copies": copies})


def _add_to_receipt(
    write: Connection, receipt_id: str, copies: Mapping[str, int], unreached: Sequence[str]
) -> None:
    query = "SELECT kv FROM receipts WHERE receipt_id = ?" + write.for_update
    row = write.execute(query, (receipt_id,)).fetchone()
    counts = Counter(json.loads(row["kv"]))
    counts.update(copies)
    write.execute(
        "UPDATE receipts SET kv = ?, unreached = ? WHERE receipt_id = ?",
        (json.dumps(counts), json.dumps(list(unreached)), receipt_id),
    )


def _digest(tenant: str, ids: list[int]) -> bytes:
    # The unnamed tenant has no key, because the first release had none.
    key = hashlib.sha256(tenant.encode()).digest() if tenant else b""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16, key=key).digest()
