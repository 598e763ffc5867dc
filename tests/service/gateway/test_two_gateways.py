"""Two gateways over one PostgreSQL, each with a worker of its own; and one that falls silent."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kvstitch.retriever import Scope
from kvstitch.service.gateway.documents.chunk_kv import ChunkKV
from kvstitch.service.gateway.documents.deletion.deletion_store import DeletionStore
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.documents.jobs.spool_folder import SpoolFolder
from kvstitch.service.gateway.documents.membership import (
    FORGET_MEMORY_S,
    FORGET_S,
    ID_FILE,
    LEASE_S,
    Membership,
)
from kvstitch.service.gateway.service_database import ServiceDatabase, shared_database
from kvstitch.service.gateway.tables import documents, jobs
from kvstitch.service.gateway.tables import gateways as members_table
from kvstitch.service.messages.requests import Purge
from tests.postgresql_server import PostgresqlServer
from tests.postgresql_server import postgresql_server as running_server
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import DOCUMENTS, Rig, running, until


@pytest.fixture(scope="module")
def url(postgresql_server: PostgresqlServer) -> str:
    return postgresql_server.database()


@pytest.fixture(scope="module")
def gateways(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Rig]]:
    folder = make_folder(tmp_path_factory.mktemp("model") / "model")
    data = Path(tempfile.mkdtemp(prefix="kv-"))
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running(folder, data / name, database=url)) for name in "ab"
        )
        yield first, second
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture
def shared(url: str) -> Iterator[ServiceDatabase]:
    """For what a test does beside the gateways, or as one that is no process here."""
    made = shared_database(url, "dead")
    made.start()
    yield made
    made.close()


def purged(rig: Rig) -> int:
    assert rig.worker is not None
    return len(rig.worker.seen(Purge))


def ask(rig: Rig, question: str, **body: Any) -> list[str]:
    found = rig.http.post("/v1/search", json={"query": question, "top_k": 3, **body})
    assert found.status_code == 200, found.text
    return [result["doc_id"] for result in found.json()["results"]]


def silence(database: ServiceDatabase, gateway_id: str, seconds: float) -> None:
    """As if the gateway had given no sign of life for so long."""
    change = members_table.update().where(members_table.c.gateway_id == gateway_id)
    with database.write() as write:
        write.execute(change.values(seen=members_table.c.seen - seconds))


def test_what_one_has_stored_the_other_finds_at_once(gateways: tuple[Rig, Rig]) -> None:
    one, other = gateways
    one.ingest(DOCUMENTS)
    for mode in ("dense", "sparse"):
        assert ask(other, "the capital of Norway", retrieval=mode)[0] == "oslo"
    assert [d["doc_id"] for d in other.http.get("/admin/documents").json()["documents"]] == [
        "bergen", "oslo", "rome",
    ]  # fmt: skip
    other.ingest([{"doc_id": "rome", "text": "Rome was moved to the moon."}])
    assert ask(one, "moon", retrieval="sparse") == ["rome"]
    assert ask(one, "Tiber", retrieval="sparse") == []


def test_a_deletion_reaches_every_gateway_before_its_receipt_is_complete(
    gateways: tuple[Rig, Rig],
) -> None:
    one, other = gateways
    one.ingest([{"doc_id": "secret", "text": "The secret is under the third stone."}])
    assert "secret" in ask(other, "secret stone")
    before = purged(one), purged(other)
    lock = other.gateway.corpus.documents._purges._run_lock
    other.call(lock.acquire)  # it cannot purge meanwhile
    receipt = one.http.delete("/admin/documents/secret").json()
    assert purged(one) > before[0] and purged(other) == before[1]
    assert receipt["completed"] is None and receipt["owed_chunks"] == 1
    assert "secret" not in ask(other, "secret stone")

    async def release() -> None:
        lock.release()

    other.call(release)
    address = f"/admin/receipts/{receipt['receipt_id']}"
    until(lambda: one.http.get(address).json()["completed"], "the other has purged, too")
    assert purged(other) > before[1]


def test_the_same_key_at_both_at_once_is_one_job(gateways: tuple[Rig, Rig]) -> None:
    """Each key comes at both gateways side by side; only a repetition at one and the same gateway
    is told to come again."""

    def post(number: int) -> tuple[str, str]:
        rig, key = gateways[number % 2], f"key-{number // 4}"
        document = {"doc_id": key, "text": f"Document {key}.", "collection": "keys"}
        while True:
            reply = rig.http.post(
                "/admin/precompute",
                json={"documents": [document]},
                headers={"Idempotency-Key": key},
            )
            if reply.status_code != 409:
                assert reply.status_code == 202, reply.text
                return key, reply.json()["job_id"]
            time.sleep(0.02)

    with ThreadPoolExecutor(8) as threads:
        answers = set(threads.map(post, range(80)))
    assert len(answers) == 20 == len({key for key, _ in answers})
    for _, job_id in answers:
        assert gateways[0].finished(job_id)["state"] == "succeeded"
    (keys,) = [
        c
        for c in gateways[1].http.get("/admin/collections").json()["collections"]
        if c["collection"] == "keys"
    ]
    assert keys["documents"] == 20


def test_what_a_silent_gateway_had_taken_goes_on_with_others(
    gateways: tuple[Rig, Rig], shared: ServiceDatabase, tmp_path: Path
) -> None:
    Membership(shared, "elsewhere:1", tmp_path, kv_dir=tmp_path / "kv").join()
    store = JobStore(shared, SpoolFolder(tmp_path / "spool"))
    store.start()
    job_id = store.begin("")
    store.spool(job_id, [IngestDocument("left", "left", "text", b"Left behind.")])
    # Taken in the same transaction as it is accepted, before the others look.
    with shared.write() as write:
        write.execute(jobs.update().where(jobs.c.job_id == job_id).values(state="queued"))
        taken_too = documents.update().where(documents.c.job_id == job_id)
        write.execute(taken_too.values(state="pending", owner="dead"))
    (taken,) = store.pending(10, 1000)
    unaccepted = store.begin("")
    assert gateways[0].http.get(f"/admin/jobs/{job_id}").json()["state"] == "queued"
    silence(shared, "dead", LEASE_S + 1)
    assert gateways[1].finished(job_id)["state"] == "succeeded"
    store.set_failed([(taken, "too late")])
    job = gateways[0].http.get(f"/admin/jobs/{job_id}").json()
    assert (job["state"], job["progress"]["done"]) == ("succeeded", 1)
    with shared.read() as read:
        assert read.scalar(sa.select(jobs.c.job_id).where(jobs.c.job_id == unaccepted)) is None


def test_a_deletion_waits_for_a_silent_gateway_until_that_is_forgotten(
    postgresql_url: str, tmp_path: Path
) -> None:
    """And if it comes back after all, its KV goes before anything is served from it."""
    opened = ExitStack()
    kv = tmp_path / "away" / "kv"
    kv.mkdir(parents=True)

    def member(name: str, process: str) -> tuple[Membership, DeletionStore]:
        (tmp_path / name).mkdir(exist_ok=True)
        database = shared_database(postgresql_url, process)
        database.start()
        opened.callback(database.close)
        joined = Membership(database, name, tmp_path / name, kv_dir=tmp_path / name / "kv")
        joined.join()
        return joined, DeletionStore(database)

    def silent(process: str, seconds: float) -> None:
        silence(here._database, process, seconds)

    here, deletions = member("here", "h1")
    _, away_deletions = member("away", "a1")
    (kv / "chunk").write_bytes(b"kv")
    targets = [ChunkKV("", "c", "d", n, [n]) for n in (1, 2)]
    receipt_id = deletions.open_receipt(Scope("", "c"), ["d"], targets)
    deletions.settle(deletions.pending_purges(9), {"ssd": 1})
    assert deletions.pending_purges(9) == [] and len(away_deletions.pending_purges(9)) == 2

    silent("a1", LEASE_S + 1)
    here.beat()
    receipt, _ = deletions.receipt(receipt_id, "") or (None, [])
    assert receipt is not None and receipt.completed is None
    assert receipt.unreached == ["gateway away"]

    _, back_deletions = member("away", "a2")  # it was only restarted
    assert (kv / "chunk").exists()
    back_deletions.settle(back_deletions.pending_purges(1), {})

    silent("a2", FORGET_S + 1)
    here.beat()
    receipt, _ = deletions.receipt(receipt_id, "") or (None, [])
    assert receipt is not None and receipt.completed is not None and receipt.owed_chunks == 0

    assert (tmp_path / "away" / ID_FILE).read_text() == "a2"
    member("away", "a3")
    assert not (kv / "chunk").exists()
    opened.close()


def test_without_kv_on_disk_a_silent_gateway_is_forgotten_sooner(
    postgresql_url: str, tmp_path: Path
) -> None:
    """But not as soon as a busy machine has held it up."""
    opened = ExitStack()
    members = []
    for name in ("here", "away"):
        (tmp_path / name).mkdir()
        database = shared_database(postgresql_url, name)
        database.start()
        opened.callback(database.close)
        members.append(Membership(database, name, tmp_path / name, kv_dir=None))
        members[-1].join()
    here, away = members
    for silent_s, member in ((LEASE_S + 1, True), (FORGET_MEMORY_S + 1, False)):
        silence(database, "away", silent_s)
        here.beat()
        assert away.beat().member is member
    opened.close()


def test_a_gateway_that_was_forgotten_ends(postgresql_url: str, tmp_path: Path, data: Path) -> None:
    folder = make_folder(tmp_path / "model")
    shared = shared_database(postgresql_url)
    with running(folder, data, database=postgresql_url) as rig:
        shared.start()
        with shared.write() as write:
            write.execute(members_table.delete())
        reason = until(lambda: rig.gateway.failure, "it ends")
        assert "no sign of life" in reason
    shared.close()


def test_postgresql_may_be_away(tmp_path: Path, data: Path) -> None:
    """Requests are refused meanwhile, and what was accepted goes on afterwards."""
    folder = make_folder(tmp_path / "model")
    with running_server() as server, running(folder, data, database=server.database()) as rig:
        rig.ingest(DOCUMENTS)
        lock = rig.gateway.corpus.documents._purges.catalog_lock
        rig.call(lock.__aenter__)
        body = {"documents": [{"doc_id": "late", "text": "Late, but here."}]}
        job = rig.http.post("/admin/precompute", json=body).json()
        server.stop()
        refused = rig.http.get("/admin/documents")
        assert refused.status_code == 503 and refused.json()["code"] == "database_unavailable"
        assert "Retry-After" in refused.headers
        server.start()
        rig.call(lambda: lock.__aexit__(None, None, None))
        until(lambda: rig.http.get("/admin/documents").status_code == 200, "it is back")
        assert rig.finished(job["job_id"])["state"] == "succeeded"
        assert ask(rig, "late") != []
