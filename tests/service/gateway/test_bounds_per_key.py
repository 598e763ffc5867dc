"""What outlives a request costs its sender: jobs and uploads of one key are bounded (429), and a
key's Idempotency-Keys are its own. Sessions of MCP: plugins/mcp/tests_mcp."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.service.gateway.documents.deletion import deletion_store
from kvstitch.service.gateway.documents.jobs import job_store
from tests.service.gateway.rig import Rig, running, until
from tests.service.gateway.test_permissions import Create, member


@pytest.fixture
def rig(folder: Path, data: Path, create: Create) -> Iterator[Rig]:
    key = create()
    with running(folder, data, max_jobs_per_key=3) as rig:
        rig.http.headers["Authorization"] = f"Bearer {key}"
        yield rig


def send(who: httpx.Client, name: str, **more: Any) -> httpx.Response:
    documents = [{"doc_id": name, "text": f"fox {name}"}]
    return who.post("/admin/precompute", json={"documents": documents}, **more)


def refused(reply: httpx.Response) -> None:
    assert reply.status_code == 429 and int(reply.headers["Retry-After"]) > 0, reply.text
    assert (reply.json()["code"], reply.json()["field"]) == ("quota_exceeded", "jobs_per_key")


def test_jobs_that_are_not_done_are_bounded(rig: Rig, create: Create) -> None:
    other = member(rig, create, ["hr"]).http
    rig.call(rig.gateway.corpus.ingestion.indexing.close)  # nobody indexes
    jobs = [send(rig.http, f"d{n}").json()["job_id"] for n in range(3)]
    refused(send(rig.http, "one more"))
    assert send(other, "of another").status_code == 202
    assert rig.http.delete(f"/admin/jobs/{jobs[0]}").json()["state"] == "cancelled"
    assert send(rig.http, "one more").status_code == 202
    refused(send(rig.http, "and one more"))
    other.close()


def test_uploads_at_a_time_are_bounded(
    rig: Rig, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store, "MAX_UPLOADS", 1)
    other = member(rig, create, ["hr"]).http
    goes_on = threading.Event()
    replies: list[httpx.Response] = []

    def body() -> Iterator[bytes]:
        yield b'{"doc_id": "slow", "text": "fox"}\n'
        goes_on.wait(30)

    def upload() -> None:
        lines = {"Content-Type": "application/x-ndjson", **rig.http.headers}
        with httpx.Client(base_url=rig.url, verify=False, timeout=60) as http:
            replies.append(http.post("/admin/precompute", content=body(), headers=lines))

    def being_sent() -> bool:
        with rig.gateway.corpus._store._read() as read:
            found = read.exec_driver_sql("SELECT 1 FROM jobs WHERE state = 'spooling'").first()
            return found is not None

    sending = threading.Thread(target=upload)
    sending.start()
    try:
        until(being_sent, "it has begun")
        refused(send(rig.http, "second"))
        assert send(other, "of another").status_code == 202
    finally:
        goes_on.set()
        sending.join()
    assert replies[0].status_code == 202
    assert send(rig.http, "third").status_code == 202
    other.close()


def test_of_jobs_that_have_ended_the_newest_are_kept(
    rig: Rig, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store, "ENDED_KEPT", 2)
    other = member(rig, create, ["hr"]).http
    theirs = send(other, "of another").json()["job_id"]
    jobs = [send(rig.http, f"d{n}").json()["job_id"] for n in range(3)]
    for job_id in (theirs, *jobs):
        assert rig.finished(job_id)["state"] == "succeeded"
    for number in range(3, 6):
        jobs.append(send(rig.http, f"d{number}").json()["job_id"])
        rig.finished(jobs[-1])
    kept = [each["job_id"] for each in rig.http.get("/admin/jobs").json()["jobs"]]
    assert kept == [*jobs[:-4:-1], theirs], "two that have ended, the newest, and of others"
    other.close()


def test_of_receipts_the_newest_are_kept(
    rig: Rig, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that finds nothing leaves one, too."""
    monkeypatch.setattr(deletion_store, "RECEIPTS_KEPT", 2)
    other = member(rig, create, ["hr"]).http

    def delete(who: httpx.Client) -> str:
        reply = who.post("/admin/deletions", json={"doc_ids": ["nobody"]})
        return str(reply.json()["receipt_id"])

    theirs = delete(other)
    receipts = [delete(rig.http) for _ in range(5)]
    found = [rig.http.get(f"/admin/receipts/{one}").status_code for one in (theirs, *receipts)]
    assert found == [200, 404, 404, 200, 200, 200], "two that were completed, and the last"
    other.close()


def test_an_idempotency_key_is_the_sender_s(rig: Rig, create: Create) -> None:
    """Whether others use the same one is not told."""
    other = member(rig, create, None).http
    named = {"headers": {"Idempotency-Key": "import-7"}}
    first = send(rig.http, "a", **named).json()["job_id"]
    assert send(rig.http, "a", **named).json()["job_id"] == first
    again = send(rig.http, "b", **named)
    assert again.status_code == 422 and "other documents" in again.text
    theirs = send(other, "b", **named)
    assert theirs.status_code == 202 and theirs.json()["job_id"] != first
    other.close()
