"""Jobs over HTTP: pages, states, cancelling, the same request twice; files of older releases."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.documents.jobs.spool_folder import SpoolFolder
from kvstitch.service.gateway.service_database import jobs_database
from kvstitch.service.messages.requests import ChunkTokens, Precompute, Purge
from tests.fakes.models import HashingEmbedder
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import DOCUMENTS, HANG_S, Rig, running, until

BOTH_DATABASES = True  # every test with the rig holds for each (see conftest.py)


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def post(rig: Rig, documents: list[dict[str, Any]], key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return rig.http.post("/admin/precompute", json={"documents": documents}, headers=headers)


def test_the_same_key_and_documents_are_one_job(rig: Rig) -> None:
    first = post(rig, DOCUMENTS, "k1")
    again = post(rig, DOCUMENTS, "k1")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["job_id"] == again.json()["job_id"]
    assert again.headers["location"] == first.headers["location"]
    other = post(rig, DOCUMENTS[:2], "k1")
    assert other.status_code == 422 and other.json()["field"] == "Idempotency-Key"
    assert post(rig, DOCUMENTS, "k2").json()["job_id"] != first.json()["job_id"]
    assert len(rig.http.get("/admin/jobs").json()["jobs"]) == 2


def test_a_key_whose_request_is_under_way_is_a_conflict(rig: Rig) -> None:
    """The first body stops in the middle until the second has been answered."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        yield json.dumps({"doc_id": "a", "text": "one"}).encode() + b"\n"
        begun.set()
        assert go_on.wait(HANG_S)
        yield json.dumps({"doc_id": "b", "text": "two"}).encode()

    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "k"}
    replies: list[httpx.Response] = []

    def send() -> None:
        url = f"{rig.url}/admin/precompute"
        replies.append(httpx.post(url, content=slowly(), headers=headers, timeout=HANG_S))

    sending = threading.Thread(target=send)
    sending.start()
    assert begun.wait(HANG_S)
    try:
        until(lambda: rig.gateway.corpus.jobs._keys_in_use, "the first request is under way")
        conflict = post(rig, DOCUMENTS, "k")
        assert conflict.status_code == 409 and "under way" in conflict.json()["detail"]
    finally:
        go_on.set()
        sending.join()
    assert replies[0].status_code == 202
    assert rig.finished(replies[0].json()["job_id"])["progress"]["done"] == 2


class SlowToStart(HashingEmbedder):
    """Starts when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def start(self) -> None:
        assert self.go_on.wait(HANG_S)


def test_documents_that_come_in_while_the_index_is_loaded(folder: Path, data: Path) -> None:
    """The end of loading does not take them for what a process that died has left."""
    embedder = SlowToStart()
    replies: list[httpx.Response] = []
    with running(folder, data, embedder=embedder, wait_ready=False) as rig:
        begun = threading.Event()

        def slowly() -> Iterator[bytes]:
            yield json.dumps({"doc_id": "a", "text": "one"}).encode() + b"\n"
            begun.set()
            rig.wait_ready()
            yield json.dumps({"doc_id": "b", "text": "two"}).encode()

        def send() -> None:
            url, headers = f"{rig.url}/admin/precompute", {"Content-Type": "application/x-ndjson"}
            replies.append(httpx.post(url, content=slowly(), headers=headers, timeout=HANG_S))

        sending = threading.Thread(target=send)
        sending.start()
        try:
            assert begun.wait(HANG_S)
            until(lambda: spooling(data), "the job is begun")
        finally:
            embedder.go_on.set()
            sending.join()
        assert replies[0].status_code == 202, replies[0].text
        assert rig.finished(replies[0].json()["job_id"])["progress"]["done"] == 2


def test_what_was_not_accepted_is_forgotten_at_the_next_start(folder: Path, data: Path) -> None:
    with running(folder, data):
        pass
    database = jobs_database(data / "jobs.sqlite3")
    database.start()
    JobStore(database, SpoolFolder(data / "spool")).begin("")
    database.close()
    assert spooling(data) == 1
    with running(folder, data):
        assert spooling(data) == 0


def spooling(data: Path) -> int:
    """How many jobs are on disk that are not accepted."""
    with contextlib.closing(sqlite3.connect(data / "jobs.sqlite3")) as database:
        query = "SELECT count(*) FROM jobs WHERE state = 'spooling'"
        count: int = database.execute(query).fetchone()[0]
    return count


def test_jobs_are_listed_newest_first_in_pages_and_by_state(rig: Rig) -> None:
    ids = [rig.ingest([{"doc_id": f"d{i}", "text": f"text {i}"}])["job_id"] for i in range(5)]
    bad = rig.ingest([{"doc_id": "bad", "text": "\u200b"}])["job_id"]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = rig.http.get("/admin/jobs", params=params).json()
        seen += [job["job_id"] for job in page["jobs"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [bad, *reversed(ids)]
    failed = rig.http.get("/admin/jobs", params={"state": "failed"}).json()["jobs"]
    assert [job["job_id"] for job in failed] == [bad]
    assert rig.http.get("/admin/jobs", params={"state": "odd"}).status_code == 422
    assert rig.http.get("/admin/jobs", params={"cursor": "x"}).json()["field"] == "cursor"


def test_cancelling_leaves_what_is_not_done(folder: Path, data: Path, database: str) -> None:
    """The worker is away, so everything is indexed and nothing computed."""
    with running(folder, data, heartbeat_timeout_s=1.0, database=database) as rig:
        rig.lose_worker()
        job_id = post(rig, DOCUMENTS).json()["job_id"]
        until(lambda: rig.metric("kvstitch_documents") == 3, "indexed")
        cancelled = rig.http.delete(f"/admin/jobs/{job_id}").json()
        assert cancelled["state"] == "cancelled"
        assert cancelled["progress"] == {"done": 0, "failed": 0, "cancelled": 3, "total": 3}
        assert rig.http.delete(f"/admin/jobs/{job_id}").json()["state"] == "cancelled", "again"
        assert rig.http.get("/admin/documents/oslo").status_code == 200, "what is indexed stays"
        until(lambda: rig.metric("kvstitch_jobs", state="cancelled") == 1, "gauge")


def test_a_job_that_has_ended_cannot_be_cancelled(rig: Rig) -> None:
    job = rig.ingest()
    refused = rig.http.delete(f"/admin/jobs/{job['job_id']}")
    assert refused.status_code == 409 and "succeeded already" in refused.json()["detail"]
    assert rig.http.delete("/admin/jobs/none").status_code == 404


def test_pinned_documents_are_computed_again_when_their_kv_is_gone(
    folder: Path, data: Path
) -> None:
    with running(folder, data, pin_check_s=0.2) as rig:
        rig.ingest()
        assert rig.http.put("/admin/pins/oslo").json()["pinned"] is True
        assert rig.http.put("/admin/pins/none").status_code == 404
        (chunk,) = rig.gateway.retriever.catalog.chunks_of("oslo")
        oslo = tuple(rig.gateway.prompts.segment(chunk))
        fake(rig).stored.clear()  # what a full tier does
        until(lambda: fake(rig).stored == {oslo}, "only the pinned one comes back")
        assert rig.http.delete("/admin/pins/oslo").json()["pinned"] is False
        assert rig.http.get("/admin/documents/oslo").json()["pinned"] is False


def test_deleting_by_filter_by_ids_and_a_whole_collection(rig: Rig) -> None:
    documents = [
        {"doc_id": f"d{i}", "text": f"text {i}", "metadata": {"year": 2000 + i}} for i in range(6)
    ]
    rig.ingest(documents)
    rig.ingest([{**d, "collection": "other"} for d in documents])
    body: dict[str, Any] = {"filter": {"year": {"gte": 2004}}}
    receipt = rig.http.post("/admin/deletions", json=body).json()
    assert (receipt["documents"], receipt["doc_ids"]) == (2, ["d4", "d5"])
    assert receipt["kv"] == {"memory": 0} or receipt["kv"] == {}, "the other collection has them"
    receipt = rig.http.post("/admin/deletions", json={"doc_ids": ["d0", "none"]}).json()
    assert receipt["doc_ids"] == ["d0"]
    left = rig.http.get("/admin/documents").json()["documents"]
    assert [d["doc_id"] for d in left] == ["d1", "d2", "d3"]
    receipt = rig.http.delete("/admin/collections/other").json()
    assert receipt["documents"] == 6 and receipt["kv"] == {"memory": 3}
    (collection,) = rig.http.get("/admin/collections").json()["collections"]
    assert (collection["collection"], collection["documents"]) == ("default", 3)
    for wrong in ({}, {"filter": {"a": 1}, "doc_ids": ["x"]}, {"filter": {"a": {"odd": 1}}}):
        assert rig.http.post("/admin/deletions", json=wrong).status_code == 422


def test_a_document_that_waits_is_deleted_with_its_text(rig: Rig, data: Path) -> None:
    """Deleted after it was accepted and before it was indexed: it never appears."""
    lock = rig.gateway.corpus.documents._purges.catalog_lock
    rig.call(lock.__aenter__)
    text = "unmistakable-needle " * 3
    job_id = post(rig, [{"doc_id": "late", "text": text}]).json()["job_id"]
    deleting = threading.Thread(target=lambda: rig.http.delete("/admin/documents/late"))
    deleting.start()
    rig.call(lambda: lock.__aexit__(None, None, None))
    deleting.join()
    until(lambda: rig.http.get(f"/admin/jobs/{job_id}").json()["state"] != "running", "ended")
    assert rig.http.get("/admin/documents/late").status_code == 404
    for path in data.glob("jobs.sqlite3*"):
        assert b"unmistakable-needle" not in path.read_bytes(), path
    assert not fake(rig).stored or fake(rig).seen(Purge)


def test_the_job_store_keeps_no_text_of_finished_documents(rig: Rig, data: Path) -> None:
    rig.ingest([{"doc_id": "d", "text": "unmistakable-needle in here"}])
    until(
        lambda: (
            not any(
                b"unmistakable-needle" in path.read_bytes() for path in data.glob("jobs.sqlite3*")
            )
        ),
        "the text is still in the job store",
    )
    assert fake(rig).seen(Precompute)


def test_jobs_that_ended_long_ago_are_forgotten(folder: Path, data: Path) -> None:
    """Those that are open stay, however old, and so do documents and receipts."""
    with running(folder, data) as rig:
        for number in range(3):
            rig.ingest([{"doc_id": f"doc{number}", "text": f"Document {number}."}])
        receipt = rig.http.delete("/admin/documents/doc0").json()["receipt_id"]
        ids = [job["job_id"] for job in rig.http.get("/admin/jobs").json()["jobs"]]
    with sqlite3.connect(data / "jobs.sqlite3") as database:
        database.execute("UPDATE jobs SET updated = updated - 40 * 86400")
        database.execute(
            "UPDATE jobs SET updated = updated + 20 * 86400 WHERE job_id = ?", (ids[0],)
        )
        database.execute(
            "UPDATE jobs SET state = 'running' WHERE job_id = ?",
            (ids[1],),
        )
    database.close()
    with running(folder, data) as rig:
        until(lambda: len(rig.http.get("/admin/jobs").json()["jobs"]) == 2, "the job is forgotten")
        assert rig.http.get(f"/admin/jobs/{ids[2]}").status_code == 404
        assert rig.http.get(f"/admin/receipts/{receipt}").status_code == 200
        assert rig.http.get("/admin/documents/doc1").status_code == 200
    with sqlite3.connect(data / "jobs.sqlite3") as database:
        (rows,) = database.execute("SELECT count(*) FROM documents").fetchone()
    database.close()
    assert rows == 2, "its documents' rows went with it"


def test_an_open_job_says_how_long_it_takes(folder: Path, data: Path) -> None:
    """The worker takes its time for every chunk; a later job has to wait for the earlier one."""
    with running(folder, data) as rig:
        worker, came = fake(rig), 0

        def slowly(chunk: ChunkTokens) -> None:
            nonlocal came
            came += 1
            worker.chunks_held = came == 20  # both jobs stay open until they were looked at

        worker.chunk_delay_s, worker.on_chunk = 0.05, slowly
        many = [{"doc_id": str(n), "text": f"document {n} says {n}"} for n in range(44)]
        first, second = (post(rig, part).json() for part in (many[:40], many[40:]))
        assert first["eta_s"] is None

        def eta(job: dict[str, Any]) -> float | None:
            found: float | None = rig.http.get(f"/admin/jobs/{job['job_id']}").json()["eta_s"]
            return found

        until(lambda: eta(first) is not None, "it is known how long the first job takes")
        until(lambda: worker.chunks_held, "the worker stands still")
        of_first, of_second = eta(first), eta(second)  # the later, the longer
        worker.chunks_held = False
        assert of_first is not None and of_second is not None
        assert 0 < of_first < of_second < 600
        ended = rig.finished(second["job_id"])
        assert ended["state"] == "succeeded" and ended["eta_s"] is None
