"""Purges of KV, and receipts of deletions, as the deletion store takes and returns them."""

from __future__ import annotations

from dataclasses import dataclass

from service.gateway.documents.chunk_kv import ChunkKV


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
