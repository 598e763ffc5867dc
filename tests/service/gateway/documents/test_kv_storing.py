"""Documents that finish during a transaction, and slices of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from retriever import Scope
from service.errors import DiskFull
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.documents.kv_storing import (
    BATCH_CHUNKS,
    CHOOSING_DOCUMENTS,
    BatchProgress,
    slices,
)


def document(number: int, collection: str = "default", chunks: int = 1) -> IngestDocument:
    return IngestDocument(str(number), collection, "", b"", number=number, chunks=chunks)


async def test_what_finishes_during_a_transaction_shares_the_next() -> None:
    written: list[Sequence[int]] = []
    go_on = asyncio.Event()

    async def write(numbers: Sequence[int]) -> None:
        written.append(numbers)
        await go_on.wait()

    async with BatchProgress(write) as progress:
        for number in (1, 2, 3):
            progress.expect(number, 1)
        progress.chunk(1, "")
        await asyncio.sleep(0)
        progress.chunk(2, "")
        progress.chunk(3, "")
        go_on.set()
    assert written == [[1], [2, 3]]


async def test_a_full_disk_is_reported() -> None:
    async def write(numbers: Sequence[int]) -> None:
        raise DiskFull("full")

    with pytest.raises(DiskFull):
        async with BatchProgress(write) as progress:
            progress.expect(1, 0)


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
