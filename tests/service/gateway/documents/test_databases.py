"""What jobs, deletions and keys promise, over a file and over PostgreSQL alike."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvstitch.records.documents import JobFault
from kvstitch.retriever import Scope
from kvstitch.retriever.errors import AlreadyThere
from kvstitch.service.errors import InvalidRequest, NotFound, QuotaExceeded
from kvstitch.service.gateway.auth.keys import KeyStore
from kvstitch.service.gateway.auth.quotas import Limits
from kvstitch.service.gateway.documents.chunk_kv import ChunkKV
from kvstitch.service.gateway.documents.deletion.deletion_store import DeletionStore
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.documents.jobs.spool_folder import SpoolFolder
from kvstitch.service.gateway.documents.membership import Membership
from kvstitch.service.gateway.documents.pace import WorkAhead
from kvstitch.service.gateway.service_database import (
    ServiceDatabase,
    jobs_database,
    shared_database,
)
from kvstitch.service.gateway.tables import purges
from kvstitch.service.messages.requests import ChunkTokens

BOTH_DATABASES = True


@pytest.fixture
def opened(database: str, tmp_path: Path) -> Iterator[ServiceDatabase]:
    made = shared_database(database, "me") if database else jobs_database(tmp_path / "jobs.sqlite3")
    made.start()
    if database:
        Membership(made, "host:1", tmp_path, kv_dir=None).join()
    yield made
    made.close()


@pytest.fixture
def store(opened: ServiceDatabase, tmp_path: Path) -> JobStore:
    made = JobStore(opened, SpoolFolder(tmp_path / "spool"))
    made.start()
    return made


def accept(store: JobStore, *names: str, tenant: str = "", key: str | None = None) -> str:
    job_id = store.begin(tenant)
    documents = [IngestDocument(n, "c", "text", n.encode() * 8, metadata={"n": n}) for n in names]
    store.spool(job_id, documents)
    store.accept(job_id, key, b"digest")
    return job_id


def test_a_job_from_acceptance_to_its_end(store: JobStore) -> None:
    hidden = store.begin("")
    assert store.get(hidden, "") is None
    job_id = accept(store, "a", "b", "c")
    assert store.states() == {"queued": 1}
    first, second, third = store.pending(10, 10_000)
    assert (first.doc_id, first.content) == ("a", b"a" * 8)
    assert (first.title, first.metadata) == ("", {"n": "a"})
    warned = '[{"code": "pages_without_text", "message": "m", "places": ["2"], "count": 1}]'
    store.set_indexed([
        replace(first, change="created", chunks=2, tokens=5, warnings=warned),
        replace(second, change="updated", chunks=1, tokens=3),
    ])  # fmt: skip
    store.set_failed([(third, "no text")])
    stored = store.get(job_id, "")
    assert stored is not None
    job = stored.job
    assert (job.state, job.progress.total, job.progress.failed, job.chunks) == ("running", 3, 1, 3)
    told = [(where, one.doc_id, list(map(asdict, one.warnings))) for where, one in stored.warnings]
    assert told == [("c", "a", json.loads(warned))] and job.warned == 1
    (kept,) = store.warnings("", first.collection, "a")
    assert [asdict(kept)] == json.loads(warned)
    assert store.warnings("", second.collection, "b") == store.warnings("x", "", "a") == []
    assert job.changes == {"created": 1, "updated": 1}
    assert stored.ahead == WorkAhead(tokens=8, last=3) and not stored.pending
    assert stored.errors == [("c", JobFault(doc_id="c", message="no text"))]
    assert store.pending(10, 10_000) == []
    indexed = store.indexed(10)
    assert [(item.kind, item.content) for item in indexed] == [("", b"")] * 2
    store.set_done([item.number for item in indexed])
    stored = store.get(job_id, "")
    assert stored is not None
    assert (stored.job.state, stored.job.progress.done) == ("failed", 2)
    assert store.get(job_id, "other tenant") is None


def test_batches_are_bounded_by_bytes_and_go_on_after_a_restart(
    store: JobStore, opened: ServiceDatabase, tmp_path: Path
) -> None:
    accept(store, "a", "b", "c")
    assert [item.doc_id for item in store.pending(10, 16)] == ["a", "b"]
    again = JobStore(opened, SpoolFolder(tmp_path / "spool"))
    again.start()
    assert [item.doc_id for item in again.pending(10, 10_000)] == ["a", "b", "c"]


def test_one_key_is_one_job(store: JobStore) -> None:
    job_id = accept(store, "a", key="k")
    assert store.find("", "k") == (job_id, b"digest")
    assert store.find("t", "k") is None
    twin = store.begin("")
    with pytest.raises(AlreadyThere):
        store.accept(twin, "k", b"digest")
    store.drop(twin)
    accept(store, "a", tenant="t", key="k")
    assert store.states() == {"queued": 2}


def test_pages_of_jobs(store: JobStore) -> None:
    ids = [accept(store, "a") for _ in range(5)]
    store.cancel(ids[1])
    page, next_cursor = store.page("", 2, None, None)
    assert [stored.job.job_id for stored in page] == [ids[4], ids[3]]
    rest, end = store.page("", 9, next_cursor, None)
    assert [stored.job.job_id for stored in rest] == ids[2::-1] and end is None
    cancelled, _ = store.page("", 9, None, "cancelled")
    assert [stored.job.job_id for stored in cancelled] == [ids[1]]


def test_documents_that_wait_can_be_cancelled(store: JobStore) -> None:
    job_id = accept(store, "a", "b")
    assert store.cancel_documents(Scope("", "c"), ["b", "x"]) == {"b": ""}
    assert store.cancel_documents(Scope("", "other"), None) == {}
    (left,) = store.pending(9, 999)
    assert left.doc_id == "a" and store.still_in("pending", [left.number, 999]) == {left.number}
    assert store.cancel_documents(Scope("", "c"), None) == {"a": ""}
    stored = store.get(job_id, "")
    assert stored is not None
    assert (stored.job.state, stored.job.progress.cancelled) == ("cancelled", 2)


def test_what_a_tenant_has_is_counted_once(store: JobStore) -> None:
    accept(store, "a", "b")
    items = store.pending(9, 999)
    store.set_indexed([replace(item, change="created", chunks=1, tokens=1) for item in items])
    job_id = store.begin("")
    store.spool(job_id, [IngestDocument("b", "c", "text", b"x" * 100)])
    counted = []
    store.accept(job_id, None, b"digest", check=lambda *held: counted.append(held))
    assert counted == [(2, 108)]


def test_uploads_at_the_same_moment_exceed_no_quota_together(
    store: JobStore, opened: ServiceDatabase, database: str, tmp_path: Path
) -> None:
    """Of eight that would each fit, at two gateways if they share the database, three do."""
    closed_at_end = ExitStack()
    stores = [store]
    if database:
        other = closed_at_end.enter_context(closing(shared_database(database, "other")))
        other.start()
        Membership(other, "host:2", tmp_path, kv_dir=None).join()
        stores.append(JobStore(other, SpoolFolder(tmp_path / "spool")))
    all_spooled = threading.Barrier(8)

    def check(documents: int, size: int) -> None:
        time.sleep(0.01)  # here others would slip through
        if documents > 3 or size > 90:
            raise QuotaExceeded("full", field="documents", retry_after_s=1.0)

    def upload(number: int) -> bool:
        own = stores[number % len(stores)]
        job_id = own.begin("t")
        own.spool(job_id, [IngestDocument(f"d{number}", "c", "text", b"x" * 30)])
        all_spooled.wait(120)
        try:
            own.accept(job_id, None, b"digest", check=check)
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(upload, range(8))) == 3
    closed_at_end.close()
    assert store.states() == {"queued": 3}


def test_jobs_that_ended_long_ago_are_pruned(store: JobStore) -> None:
    accept(store, "a")
    cancelled = accept(store, "b")
    store.cancel(cancelled)
    assert store.prune(time.time() - 60) == 0
    assert store.prune(time.time() + 60) == 1
    assert store.states() == {"queued": 1}


def test_a_receipt_is_complete_when_its_purges_are_made(opened: ServiceDatabase) -> None:
    deletions = DeletionStore(opened)
    targets = [ChunkKV("t", "c", "d", number, [1, 2, number]) for number in (1, 2, 3)]
    deletions.record_contents(targets)
    receipt_id = deletions.open_receipt(Scope("t", "c"), ["d"], targets)
    assert deletions.receipt(receipt_id, "other") is None
    first, second, third = deletions.pending_purges(9, receipt_id)
    assert (first.ids, first.chunk_id) == ([1, 2, 1], 1)
    deletions.settle([first], {"memory": 2})
    deletions.record_unreached(receipt_id, {"ssd": 1}, ["redis"])
    receipt, _ = deletions.receipt(receipt_id, "t") or (None, [])
    assert receipt is not None and (receipt.owed_chunks, receipt.unreached) == (2, ["redis"])
    deletions.drop([second])
    deletions.settle([third], {"memory": 1})
    receipt, _ = deletions.receipt(receipt_id, "t") or (None, [])
    assert receipt is not None and receipt.completed is not None
    assert receipt.kv == {"memory": 3, "ssd": 1} and receipt.unreached == []
    assert deletions.chunks_with_content(targets[2].digest) == [3]
    deletions.forget_contents([3])
    assert deletions.chunks_with_content(targets[2].digest) == []


def test_copies_of_a_purge_come_back_with_their_prefixes(opened: ServiceDatabase) -> None:
    deletions = DeletionStore(opened)
    shared, other = [5, 6, 7], [8]
    copies = [
        ChunkTokens(1, [1], [shared, other], [[shared]]),
        ChunkTokens(2, [2, 2], [shared]),
        ChunkTokens(3, shared),
    ]
    deletions.add_purges([ChunkKV("t", "c", "d", 1, [1], copies), ChunkKV("t", "c", "d", 2, [2])])
    first, second = deletions.pending_purges(9)
    assert (first.copies, second.copies) == (copies, [])
    with opened.write() as write:  # as 0.2.0 wrote them
        old = json.dumps([asdict(copy) for copy in copies])
        write.execute(purges.update().values(copies=old))
    assert deletions.pending_purges(1)[0].copies == copies


def test_keys_are_made_found_and_revoked(database: str, tmp_path: Path) -> None:
    keys = KeyStore(shared_database(database) if database else tmp_path / "keys.sqlite3")
    keys.start()
    assert not keys.any()
    text, made = keys.create(tenant="t", name="n", limits=Limits(bytes=2**40))
    assert keys.find(text) == made and made.limits.bytes == 2**40
    assert keys.find(text[:-1] + ("0" if text[-1] != "0" else "1")) is None
    late, _ = keys.create(expires=time.time() - 1)
    assert keys.find(late) is None
    assert [key.tenant for key in keys.all()] == ["t", ""]
    keys.revoke(made.key_id)
    assert keys.find(text) is None and keys.any()
    with pytest.raises(NotFound):
        keys.revoke("unknown")
    with pytest.raises(InvalidRequest):
        keys.create(scopes=frozenset({"odd"}))
    keys.close()
