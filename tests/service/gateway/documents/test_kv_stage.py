"""Slices of a batch."""

from __future__ import annotations

from kvstitch.retriever import Scope
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.kv_stage import BATCH_CHUNKS, CHOOSING_DOCUMENTS, slices


def document(number: int, collection: str = "default", chunks: int = 1) -> IngestDocument:
    return IngestDocument(str(number), collection, "", b"", number=number, chunks=chunks)


def test_slices_have_one_scope_and_few_documents_and_chunks() -> None:
    batch = [document(number) for number in range(CHOOSING_DOCUMENTS + 1)]
    batch += [document(100, "other"), document(101, "other", BATCH_CHUNKS), document(102, "other")]
    found = [(scope, [item.number for item in items]) for scope, items in slices(batch)]
    assert found == [
        (Scope("", "default"), list(range(CHOOSING_DOCUMENTS))),
        (Scope("", "default"), [CHOOSING_DOCUMENTS]),
        (Scope("", "other"), [100]),
        (Scope("", "other"), [101]),
        (Scope("", "other"), [102]),
    ]
