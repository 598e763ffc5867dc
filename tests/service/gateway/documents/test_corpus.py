"""Ingest jobs, listing, deletion and purges, over HTTP and a fake worker."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstitch.retriever.embedders import CountedVectors
from kvstitch.service.gateway.documents.deletion.purge_queue import CHUNKS_PER_CALL
from kvstitch.service.gateway.documents.document_service import PURGE_S
from kvstitch.service.messages.requests import ChunkTokens, Precompute, Purge
from tests.fakes.worker import FakeWorker
from tests.service.gateway.model_folders import byte_tokenizer
from tests.service.gateway.rig import DOCUMENTS, HANG_S, Rig, running, until


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def test_job_is_accepted_with_a_location_and_finishes(rig: Rig) -> None:
    response = rig.http.post("/admin/precompute", json={"documents": DOCUMENTS})
    accepted = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/admin/jobs/{accepted['job_id']}"
    assert accepted["state"] in ("queued", "running") and accepted["progress"]["total"] == 3
    job = rig.finished(accepted["job_id"])
    assert job["state"] == "succeeded" and job["errors"] == []
    assert job["progress"] == {"done": 3, "failed": 0, "cancelled": 0, "total": 3}
    assert job["changes"] == {"created": 3} and job["chunks"] == 3
    assert len(fake(rig).stored) == 3
    until(lambda: rig.metric("kvstitch_documents") == 3, "gauge")
    assert rig.metric("kvstitch_chunks") == 3
    until(lambda: rig.metric("kvstitch_jobs", state="succeeded") == 1, "gauge")


def test_ingesting_again_changes_nothing(rig: Rig) -> None:
    rig.ingest()
    again = rig.ingest()
    assert again["changes"] == {"unchanged": 3} and again["progress"]["done"] == 3
    assert fake(rig).seen(Purge) == [] and len(fake(rig).stored) == 3


def test_update_purges_only_what_is_gone(rig: Rig) -> None:
    lines = [f"Paragraph {i} says that number {i} is a number like others.\n\n" for i in range(12)]
    rig.ingest([{"doc_id": "d", "text": "".join(lines)}])
    before = set(fake(rig).stored)
    assert len(before) > 3
    changed = "".join([*lines[:-1], "The end.\n"])
    job = rig.ingest([{"doc_id": "d", "text": changed}])
    assert job["changes"] == {"updated": 1}
    until(lambda: fake(rig).seen(Purge), "purge")
    after = set(fake(rig).stored)
    kept = before & after
    assert len(kept) >= len(before) - 2, "unchanged chunks keep their KV"
    chunks = rig.gateway.retriever.catalog.chunks_of("d")
    assert after == {tuple(rig.gateway.prompts.segment(c)) for c in chunks}


def test_delete_removes_text_vectors_and_kv(rig: Rig) -> None:
    rig.ingest()
    response = rig.http.delete("/admin/documents/oslo")
    receipt = response.json()
    assert receipt["state"] == "completed" and receipt["doc_ids"] == ["oslo"]
    assert (receipt["documents"], receipt["chunks"], receipt["owed_chunks"]) == (1, 1, 0)
    assert receipt["kv"] == {"memory": 1} and receipt["unreached"] == []
    assert rig.http.get(f"/admin/receipts/{receipt['receipt_id']}").json() == receipt
    assert len(fake(rig).stored) == 2
    assert rig.http.get("/admin/documents/oslo").status_code == 404
    assert rig.http.delete("/admin/documents/oslo").status_code == 404
    cited = {c["doc_id"] for c in rig.ask(top_k=10).json()["citations"]}
    assert cited == {"bergen", "rome"}
    assert rig.metric("kvstitch_documents") == 2


def test_a_tier_that_owes_a_deletion_keeps_no_other_document_waiting(rig: Rig) -> None:
    rig.ingest()
    fake(rig).unreached = ["s3"]
    receipt = rig.http.delete("/admin/documents/oslo").json()
    assert (receipt["state"], receipt["unreached"]) == ("owed", ["s3"])
    new = rig.ingest([{"doc_id": "tromso", "text": "Tromso is a town north of the circle."}])
    assert new["state"] == "succeeded" and len(fake(rig).stored) == 3
    fake(rig).unreached = []
    path = f"/admin/receipts/{receipt['receipt_id']}"
    until(lambda: rig.http.get(path).json()["state"] == "completed", "what is owed is made")


def test_a_deletion_answers_before_a_slow_tier_has_purged_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * CHUNKS_PER_CALL + 2
    rig.ingest([{"doc_id": f"d{n}", "text": f"Entry {n} of a long list."} for n in range(count)])
    corpus = rig.gateway.corpus
    purging = corpus.ingestion.precompute
    rig.call(purging.close)  # else it may make these purges, too
    now = 0.0

    def take_long(call: Purge) -> None:
        nonlocal now
        now += PURGE_S

    monkeypatch.setattr(corpus.documents._purges, "_clock", lambda: now)
    fake(rig).on_purge = take_long
    receipt = rig.http.delete("/admin/collections/default").json()
    assert (receipt["state"], receipt["chunks"]) == ("owed", count)
    assert receipt["owed_chunks"] == count - CHUNKS_PER_CALL, "one call made, and no further begun"
    rig._loop.call_soon_threadsafe(purging.start)
    path = f"/admin/receipts/{receipt['receipt_id']}"
    until(lambda: rig.http.get(path).json()["state"] == "completed", "the rest is purged")
    assert rig.http.get(path).json()["kv"] == {"memory": count}
    assert not fake(rig).stored


def test_deleting_a_document_spares_the_kv_of_its_twin(rig: Rig) -> None:
    twins = [{"doc_id": d, "title": "Same", "text": "the very same text"} for d in ("a", "b")]
    rig.ingest(twins)
    assert len(fake(rig).stored) == 1
    assert rig.http.delete("/admin/documents/b").json()["kv"] == {}
    assert len(fake(rig).stored) == 1
    assert rig.http.delete("/admin/documents/a").json()["kv"] == {"memory": 1}
    assert not fake(rig).stored


def test_documents_are_listed_in_pages(rig: Rig) -> None:
    rig.ingest([{"doc_id": f"a/{i}", "text": f"text {i}", "metadata": {"i": i}} for i in range(5)])
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = rig.http.get("/admin/documents", params=params).json()
        seen += [d["doc_id"] for d in page["documents"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [f"a/{i}" for i in range(5)]
    one = rig.http.get("/admin/documents/a/3").json()
    assert one["text"] == "text 3" and one["metadata"] == {"i": 3} and one["num_chunks"] == 1


def test_a_title_that_is_cut_is_said(rig: Rig) -> None:
    long = {"doc_id": "long", "text": "x", "title": "Report " + "word " * 300 + "of May"}
    job = rig.ingest([*DOCUMENTS, long])
    assert job["state"] == "succeeded" and job["warned"] == 1
    stored = rig.http.get("/admin/documents/long").json()
    assert [w["code"] for w in stored["warnings"]] == ["title_cut"]
    begin, end = stored["title"].split(" … ")
    assert long["title"].startswith(begin) and long["title"].endswith(end)
    assert "Report" in begin and "May" in end
    assert 0 < len(stored["title"]) < len(long["title"])


def test_documents_in_another_language_than_the_embedder_s(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.gateway.retriever.retriever.embedder.name = "all-MiniLM-L6-v2"  # type: ignore[misc]
    text = "Die Pumpe muss abgeschaltet werden, bevor ein Techniker ihr Gehäuse öffnet."
    german = [{"doc_id": f"de{n}", "text": f"{n}. {text}"} for n in range(2)]
    assert rig.ingest([*DOCUMENTS, german[0]])["warned"] == 1
    assert rig.http.get("/status").json()["advice"] == []  # four say little
    assert rig.ingest([german[1]])["warned"] == 1
    (warning,) = rig.http.get("/admin/documents/de1").json()["warnings"]
    assert warning["code"] == "other_language" and "%" not in warning["message"]
    (advice,) = rig.http.get("/status").json()["advice"]
    assert advice.startswith("40%") and "model fetch multilingual-e5-small" in advice
    rig.ingest([{"doc_id": "de2", "text": text}])
    assert sum(advice[4:] in record.message for record in caplog.records) == 1


def test_a_failed_document_fails_alone(rig: Rig) -> None:
    invisible = "\u200b"
    job = rig.ingest([*DOCUMENTS, {"doc_id": "bad", "text": invisible}])
    assert job["state"] == "failed"
    assert job["progress"] == {"done": 3, "failed": 1, "cancelled": 0, "total": 4}
    (error,) = job["errors"]
    assert error["doc_id"] == "bad" and "no text" in error["message"]


@pytest.mark.parametrize(
    ("headers", "content", "params"),
    [
        ({"Content-Type": "text/plain; charset=utf-8"}, "Grüße", {"doc_id": "a", "title": "T"}),
        ({"Content-Type": "text/markdown"}, "\ufeffGrüße", {"doc_id": "a"}),
        ({"Content-Type": "application/x-ndjson"}, '{"doc_id": "a", "text": "Grüße"}\n\n', {}),
    ],
)
def test_other_uploads(
    rig: Rig, headers: dict[str, str], content: str, params: dict[str, str]
) -> None:
    response = rig.http.post(
        "/admin/precompute", content=content.encode(), headers=headers, params=params
    )
    assert response.status_code == 202, response.text
    rig.finished(response.json()["job_id"])
    assert rig.http.get("/admin/documents/a").json()["text"] == "Grüße"


def test_form_upload_keeps_every_byte(rig: Rig) -> None:
    text = "line one\r\nGrüße\nline three"
    files = {"one": ("notes.txt", text.encode()), "two": ("b.md", b"# B")}
    response = rig.http.post("/admin/precompute", files=files)
    rig.finished(response.json()["job_id"])
    assert rig.http.get("/admin/documents/notes.txt").json()["text"] == text
    assert rig.http.get("/admin/documents/b.md").json()["title"] == "B"


def test_jobs_survive_a_restart_and_wait_for_the_worker(folder: Path, data: Path) -> None:
    with running(folder, data, heartbeat_timeout_s=1.0) as rig:
        rig.lose_worker()
        response = rig.http.post("/admin/precompute", json={"documents": DOCUMENTS})
        assert response.status_code == 202
        job_id = response.json()["job_id"]
        until(lambda: rig.metric("kvstitch_documents") == 3, "indexed without the worker")
        deleted = rig.http.delete("/admin/documents/rome").json()
        assert deleted["state"] == "owed" and deleted["owed_chunks"] == 1
        receipt = f"/admin/receipts/{deleted['receipt_id']}"
    stored: set[tuple[int, ...]] = {(9, 9)}
    with running(folder, data, worker=FakeWorker("", stored=stored)) as rig:
        job = rig.finished(job_id)
        assert job["state"] == "succeeded" and job["progress"]["done"] == 3
        assert len(stored) == 3, "two documents and what was there"
        assert rig.worker is not None
        until(lambda: rig.http.get(receipt).json()["state"] == "completed", "the owed purge")
        assert fake(rig).seen(Purge)


def test_a_document_deleted_while_its_kv_is_computed_leaves_none(rig: Rig) -> None:
    """Precompute answers late: the delete comes in between."""
    worker = fake(rig)

    def meanwhile(chunk: ChunkTokens) -> None:
        rig.gateway.retriever.retriever.delete(["rome"])

    worker.on_chunk = meanwhile
    rig.ingest()
    until(lambda: len(worker.stored) == 2, "purged again")


def test_deletions_and_cancellations_do_not_wait_for_embedding(rig: Rig) -> None:
    rig.ingest()
    embedder = rig.gateway.retriever.retriever.embedder
    embed, reached, go_on = embedder.embed, threading.Event(), threading.Event()

    def slow(texts: Sequence[str]) -> CountedVectors:
        reached.set()
        assert go_on.wait(HANG_S)
        return embed(texts)

    embedder.embed = slow  # type: ignore[method-assign]
    documents = [{"doc_id": name, "text": f"{name} is new"} for name in ("oslo", "lima", "quito")]
    jobs = [
        rig.http.post("/admin/precompute", json={"documents": [document]}).json()["job_id"]
        for document in documents
    ]
    assert reached.wait(HANG_S)
    assert rig.http.delete("/admin/documents/oslo").status_code == 200
    assert rig.http.delete("/admin/documents/rome").status_code == 200
    assert rig.http.delete(f"/admin/jobs/{jobs[1]}").status_code == 200
    go_on.set()
    assert rig.finished(jobs[2])["state"] == "succeeded"
    listed = rig.http.get("/admin/documents").json()["documents"]
    assert [document["doc_id"] for document in listed] == ["bergen", "quito"]


def test_failed_precompute_is_the_documents_error(rig: Rig) -> None:
    from kvstitch.service.messages.replies import Precomputed

    worker = fake(rig)
    worker._precompute = lambda call, chunk: Precomputed(  # type: ignore[method-assign]
        call, chunk.chunk_id, "failed", 0, 0.0, "disk full"
    )
    job = rig.ingest()
    assert job["state"] == "failed" and len(job["errors"]) == 3
    assert "disk full" in job["errors"][0]["message"]
    assert [len(m.documents) for m in worker.received if isinstance(m, Precompute)] == [3]


def test_a_document_that_kills_the_worker_is_given_up_the_others_are_not(
    folder: Path, data: Path
) -> None:
    poison = "☠"
    token = byte_tokenizer().encode(poison).ids[0]
    command = (
        sys.executable,
        "-m",
        "tests.fakes.worker",
        "--crash-token",
        str(token),
    )
    with running(folder, data / "d", command=command) as rig:
        bad = {"doc_id": "bad", "text": f"this one {poison}"}
        job = rig.ingest([*DOCUMENTS[:2], bad, *DOCUMENTS[2:]])
        assert job["state"] == "dead" and job["progress"]["done"] == 3
        (error,) = job["errors"]
        assert error["doc_id"] == "bad" and "the worker died 3 times" in error["message"]
        assert rig.metric("kvstitch_worker_restarts_total") == 3
        assert rig.ingest([{"doc_id": "later", "text": "fine"}])["state"] == "succeeded"


def test_two_services_on_one_folder_are_refused(rig: Rig, folder: Path) -> None:
    from kvstitch.service.errors import InvalidSetting
    from kvstitch.service.gateway.composition import Gateway
    from kvstitch.service.gateway.workers import ProcessOptions

    second = Gateway(rig.gateway.settings, folder, processes=ProcessOptions(address="ipc:///none"))
    with pytest.raises(InvalidSetting, match="another kvstitch serves"):
        rig.call(second.start)


def test_jsonl_lines_with_unicode_separators(rig: Rig) -> None:
    content = json.dumps({"doc_id": "a", "text": "one\u2028two"}, ensure_ascii=False)
    headers = {"Content-Type": "application/x-ndjson"}
    response = rig.http.post("/admin/precompute", content=content.encode(), headers=headers)
    rig.finished(response.json()["job_id"])
    assert rig.http.get("/admin/documents/a").json()["text"] == "one\u2028two"
