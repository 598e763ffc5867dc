"""Nobody's many or long documents come before those of others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from kvstitch.retriever.ingest import EmbeddedDocument
from kvstitch.service.gateway.documents.indexing_stage import LONG_BYTES
from kvstitch.service.gateway.documents.jobs.document_queue import DocumentQueue
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.documents.jobs.spool_folder import SpoolFolder
from kvstitch.service.gateway.documents.kv_stage import PASS_CHUNKS
from kvstitch.service.gateway.documents.long_documents import AT_A_TIME, LongDocuments
from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, ParsedDocument
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.gateway.service_database import jobs_database
from kvstitch.service.messages.requests import Precompute
from tests.service.gateway.rig import running, until

TENANTS, MANY = 64, 300


def test_of_64_tenants_each_has_its_turn_though_one_came_first_with_many(tmp_path: Path) -> None:
    database = jobs_database(tmp_path / "jobs.sqlite3")
    database.start()
    store = JobStore(database, SpoolFolder(tmp_path / "spool"))
    store.start()
    for tenant in range(TENANTS):
        job_id = store.begin(f"tenant {tenant}")
        count = MANY if tenant == 0 else 3
        store.spool(
            job_id, [IngestDocument(str(n), "default", "text", b"text") for n in range(count)]
        )
        store.accept(job_id, None, b"")
    first = store.pending(2 * TENANTS, 1 << 20)
    assert set(Counter(each.tenant for each in first).values()) == {2}
    every = [each.number for each in first]
    following = store.pending(2 * TENANTS, 1 << 20, without=every)
    shares = Counter(each.tenant for each in following)
    assert len(shares) == TENANTS and min(shares.values()) == 1 == shares["tenant 63"]
    database.close()


class Reading:
    """Reads no document to its end before it may."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._may_end: dict[str, asyncio.Event] = {}

    async def document(self, item: IngestDocument) -> ParsedDocument:
        self.begun.append(item.doc_id)
        await self._may_end.setdefault(item.doc_id, asyncio.Event()).wait()
        return ParsedDocument(item.doc_id, "text", item=item)

    async def end(self, doc_id: str) -> None:
        self._may_end[doc_id].set()
        while len(self.begun) == AT_A_TIME:
            await asyncio.sleep(0)


class NoChunks:
    """Cuts documents into nothing."""

    async def split(self, document: EmbeddedDocument) -> None: ...


@asynccontextmanager
async def long_documents(reading: Reading) -> AsyncIterator[LongDocuments]:
    async def nothing(*args: object) -> None:
        return None

    queue = cast(DocumentQueue, None)  # nothing fails here, and no part is asked for
    retriever = cast(AsyncRetriever, NoChunks())
    made = LongDocuments(cast(DocumentParser, reading), retriever, queue, nothing)
    try:
        yield made
    finally:
        await made.close()


async def test_the_next_long_one_is_of_the_tenant_that_has_fewest_under_way() -> None:
    reading = Reading()
    async with long_documents(reading) as long:
        for number, name in enumerate(["a1", "a2", "a3", "a4", "a5", "b1"], 1):
            long.add(IngestDocument(name, "c", "text", b"", tenant=name[0], number=number))
        await asyncio.sleep(0)
        assert reading.begun == ["a1", "a2", "a3"]
        await reading.end("a2")
        assert reading.begun == ["a1", "a2", "a3", "b1"]


def test_a_note_comes_between_the_passes_over_a_long_ones_kv(folder: Path, data: Path) -> None:
    line = "So many words about nothing in particular, number %d.\n"
    book = {"doc_id": "book", "text": "".join(line % n for n in range(LONG_BYTES // 50))}
    note = {"doc_id": "note", "text": "The fjord is deep."}
    with running(folder, data) as rig:
        assert rig.worker is not None
        rig.worker.chunk_delay_s = 0.5  # until the note is waiting, too
        long = rig.http.post("/admin/precompute", json={"documents": [book]}).json()["job_id"]
        until(lambda: rig.worker and rig.worker.seen(Precompute), "the first pass")
        short = rig.http.post("/admin/precompute", json={"documents": [note]}).json()["job_id"]
        until(lambda: rig.http.get("/admin/documents/note").status_code == 200, "the note")
        rig.worker.chunk_delay_s = 0.0
        assert rig.finished(short)["state"] == "succeeded"
        done = rig.finished(long)
        assert done["state"] == "succeeded" and done["chunks"] > 3 * PASS_CHUNKS
        seen = cast(list[Precompute], rig.worker.seen(Precompute))
        order = list(dict.fromkeys(chunk.chunk_id for each in seen for chunk in each.documents))
        assert order.index(max(order)) <= 2 * PASS_CHUNKS  # the note's came into the catalog last
