"""Deletions on disk: the pending purges, and the receipts that record their results.

    receipt opened, before the change ── pending purges ── settled one by one ── receipt completed

It also remembers which chunks have which content, because chunks with the same token ids share
one KV.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select

from kvstitch.records.documents import Receipt
from kvstitch.retriever.scope import EVERYBODY, Scope
from kvstitch.retriever.sql.expressions import among, upsert
from kvstitch.service.gateway.documents import membership
from kvstitch.service.gateway.documents.chunk_kv import ChunkKV
from kvstitch.service.gateway.service_database import ServiceDatabase
from kvstitch.service.gateway.tables import confirmations, contents, purges, receipts, sizes
from kvstitch.service.messages.requests import ChunkTokens

_MAX_DOC_IDS = 100  # that a receipt names
RECEIPTS_KEPT = 2000  # completed ones of one sender


@dataclass(frozen=True, kw_only=True)
class PendingPurge(ChunkKV):
    """A purge that is on disk and not done; its chunk may still be in the catalog."""

    number: int
    receipt_id: str | None
    shared: bool = False  # another chunk has the same ids, so only the copies are deleted


class DeletionStore:
    """Thread-safe; every call blocks. The database must have been started."""

    def __init__(self, database: ServiceDatabase) -> None:
        self.database = database
        self._shared = database.shared

    # -- receipts --------------------------------------------------------------------------------

    def open_receipt(
        self,
        scope: Scope,
        doc_ids: Sequence[str],
        targets: Sequence[ChunkKV],
        readers: Collection[str] = (),
    ) -> str:
        """Write a receipt and its pending purges, before the documents are removed; return its
        id. Of the sender's completed ones the newest are kept."""
        receipt_id, now = uuid.uuid4().hex, time.time()
        row = {
            "receipt_id": receipt_id,
            "tenant": scope.tenant,
            "collection": scope.collection,
            "sender": scope.sender,
            "doc_ids": json.dumps(list(doc_ids[:_MAX_DOC_IDS])),
            "documents": len(doc_ids),
            "chunks": sum(bool(target.ids) for target in targets),
            "kv": "{}",
            "unreached": "[]",
            "created": now,
            "completed": None if targets else now,
            "readers": json.dumps(sorted(set(readers) - {EVERYBODY})),
        }
        tenant, own = scope.tenant, receipts.c.sender == scope.sender
        of_collection = sizes.c.tenant == tenant, sizes.c.collection == scope.collection
        ended = receipts.c.tenant == tenant, own, receipts.c.completed.is_not(None)
        oldest = select(receipts.c.created).where(*ended).order_by(receipts.c.created.desc())
        older = receipts.c.created <= oldest.offset(RECEIPTS_KEPT).limit(1).scalar_subquery()
        with self.database.write() as write:
            write.execute(receipts.delete().where(*ended, older))
            write.execute(receipts.insert(), row)
            write.execute(sizes.delete().where(*of_collection, among(sizes.c.doc_id, doc_ids)))
            _insert_purges(write, targets, receipt_id)
        return receipt_id

    def receipt(self, receipt_id: str, tenant: str) -> tuple[Receipt, list[str]] | None:
        """Return a receipt as it is now, and the readers of its documents."""
        named = receipts.c.receipt_id == receipt_id, receipts.c.tenant == tenant
        own = select(func.count()).where(purges.c.receipt_id == receipts.c.receipt_id)
        with self.database.read() as read:
            query = select(receipts, own.scalar_subquery().label("owed")).where(*named)
            row = read.execute(query).first()
            if row is None:
                return None
            silent = membership.silent_owing(read, receipt_id) if self._shared else []
        unreached = [*json.loads(row.unreached), *(f"gateway {name}" for name in silent)]
        receipt = Receipt(
            receipt_id=receipt_id,
            state="owed" if row.completed is None else "completed",
            collection=row.collection,
            doc_ids=json.loads(row.doc_ids),
            documents=row.documents,
            chunks=row.chunks,
            kv=json.loads(row.kv),
            owed_chunks=row.owed,
            unreached=unreached if row.owed else [],
            created=row.created,
            completed=row.completed,
        )
        return receipt, json.loads(row.readers)

    # -- pending purges --------------------------------------------------------------------------

    def add_purges(self, targets: Sequence[ChunkKV]) -> None:
        """Add purges that belong to no receipt, e.g. of a document that was replaced."""
        with self.database.write() as write:
            _insert_purges(write, targets, None)

    def pending_purges(self, limit: int, receipt_id: str | None = None) -> list[PendingPurge]:
        """Return the oldest purges that this gateway has not made, of all receipts or one."""
        query = select(purges).order_by(purges.c.number).limit(limit)
        if receipt_id is not None:
            query = query.where(purges.c.receipt_id == receipt_id)
        if self._shared:
            query = query.where(membership.unconfirmed_by(self.database.gateway_id))
        with self.database.read() as read:
            return [_pending(row) for row in read.execute(query)]

    def settle(self, made: Sequence[PendingPurge], copies: Mapping[str, int]) -> None:
        """Remove purges that this gateway has made and no other still has to make: all of them of
        one receipt, or all of none. `copies`: deleted copies of KV per tier."""
        numbers = [purge.number for purge in made]
        with self.database.write() as write:
            if self._shared:
                numbers = self._confirm(write, numbers)
            _remove(write, made, numbers, copies)

    def drop(self, needless: Sequence[PendingPurge]) -> None:
        """Remove purges that nobody has to make after all."""
        with self.database.write() as write:
            _remove(write, needless, [purge.number for purge in needless], {})

    def _confirm(self, write: Connection, numbers: list[int]) -> list[int]:
        """Note that this gateway has made purges; return those that all have made."""
        asked = among(purges.c.number, numbers)
        locked = select(purges.c.number).where(asked).order_by(purges.c.number).with_for_update()
        mine = [{"number": number, "gateway_id": self.database.gateway_id}
                for number in write.scalars(locked)]  # fmt: skip
        upsert(write, confirmations, mine)
        return list(write.scalars(membership.made_by_all().where(asked)))

    def record_unreached(
        self, receipt_id: str | None, copies: Mapping[str, int], tiers: Sequence[str]
    ) -> None:
        """Note that copies were deleted, but not in these tiers; the purges stay pending."""
        if receipt_id is not None:
            with self.database.write() as write:
                _add_to_receipt(write, receipt_id, copies, tiers)

    # -- contents --------------------------------------------------------------------------------

    def record_contents(self, targets: Sequence[ChunkKV]) -> None:
        """Remember the content of chunks, before their KV is stored."""
        rows = [{"chunk_id": target.chunk_id, "digest": target.digest} for target in targets]
        with self.database.write() as write:
            upsert(write, contents, rows)

    def chunks_with_content(self, digest: bytes) -> list[int]:
        """Return a tenant's chunks with the same token ids: all of them share one KV."""
        query = select(contents.c.chunk_id).where(contents.c.digest == digest)
        with self.database.read() as read:
            return list(read.scalars(query))

    def forget_contents(self, chunk_ids: Sequence[int]) -> None:
        with self.database.write() as write:
            write.execute(contents.delete().where(among(contents.c.chunk_id, chunk_ids)))


def _insert_purges(write: Connection, targets: Sequence[ChunkKV], receipt_id: str | None) -> None:
    rows = [
        {
            "receipt_id": receipt_id,
            "tenant": target.tenant,
            "collection": target.collection,
            "doc_id": target.doc_id,
            "chunk_id": target.chunk_id,
            "ids": json.dumps(target.ids),
            "copies": json.dumps(_packed(target.copies)),
            "prompts": int(target.prompts),
        }
        for target in targets
    ]
    if rows:
        write.execute(purges.insert(), rows)


def _pending(row: Row[Any]) -> PendingPurge:
    copies = _unpacked(json.loads(row.copies))
    made = {"ids": json.loads(row.ids), "copies": copies, "prompts": bool(row.prompts)}
    return PendingPurge(**{**row._mapping, **made})


def _packed(copies: Sequence[ChunkTokens]) -> dict[str, Any]:
    """Return copies as JSON that holds a text once that stands in many prefixes."""
    numbers: dict[int, int] = {}  # of texts, by the list's identity
    texts: list[list[int]] = []

    def number(ids: list[int]) -> int:
        if id(ids) not in numbers:
            numbers[id(ids)] = len(texts)
            texts.append(ids)
        return numbers[id(ids)]

    packed = [
        [copy.chunk_id, number(copy.ids), [[number(ids) for ids in one] for one in copy.prefixes]]
        for copy in copies
    ]
    return {"texts": texts, "copies": packed} if packed else {}


def _unpacked(content: Any) -> list[ChunkTokens]:
    if isinstance(content, list):  # of 0.2.0
        return [ChunkTokens(**copy) for copy in content]
    texts, out = content.get("texts"), []
    for chunk_id, own, prefixes in content.get("copies", ()):
        behind = [[texts[number] for number in prefix] for prefix in prefixes]
        out.append(ChunkTokens(chunk_id, texts[own], *((behind[0], behind[1:]) if behind else ())))
    return out


def _remove(
    write: Connection,
    settled: Sequence[PendingPurge],
    numbers: Sequence[int],
    copies: Mapping[str, int],
) -> None:
    """Remove purges, and complete the receipts of which none is left."""
    write.execute(purges.delete().where(among(purges.c.number, numbers)))
    receipt_ids = {purge.receipt_id for purge in settled if purge.receipt_id is not None}
    for receipt_id in sorted(receipt_ids):
        _add_to_receipt(write, receipt_id, copies, [])
    membership.complete(write, receipt_ids)


def _add_to_receipt(
    write: Connection, receipt_id: str, copies: Mapping[str, int], unreached: Sequence[str]
) -> None:
    named = receipts.c.receipt_id == receipt_id
    before = write.scalars(select(receipts.c.kv).where(named).with_for_update()).one()
    counts = Counter(json.loads(before))
    counts.update(copies)
    values = {"kv": json.dumps(counts), "unreached": json.dumps(list(unreached))}
    write.execute(receipts.update().where(named).values(values))
