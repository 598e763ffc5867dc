"""`kvstitch encryption encrypt`: a folder that was filled in the clear, also after kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from encryption.values import TEXT_PREFIX
from service.cli import main
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.service_database import jobs_database
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import Rig, running

SENTENCE = "An aardvarkish sentence of a large document."
LARGE = f"<p>{SENTENCE}</p><!-- {'aardvarkish ' * 12_000} -->"  # a file of the spool folder
SMALL = "An aardvarkish sentence of a small document."  # in a row
WAIT_S = 120.0
DOCUMENTS = [
    {"doc_id": f"d{n}", "title": f"Quillwork {n}", "metadata": {"topic": f"marginalia {n}"},
     "text": f"# Heathland {n}\n\nThe zebrafinch number {n} sleeps in a birdhouse.", }
    for n in range(16)
]  # fmt: skip
SECRETS = [b"aardvarkish", b"Quillwork", b"quillwork", b"marginalia", b"Heathland", b"zebrafinch",
           b"birdhouse"]  # fmt: skip


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "master.key"
    path.write_text(os.urandom(32).hex())
    monkeypatch.setenv("KVSTITCH_ENCRYPTION_KEY_FILE", str(path))
    return path


def fill(model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """Store documents in the clear; return what a search finds, and a job that waits."""
    monkeypatch.delenv("KVSTITCH_ENCRYPTION_KEY_FILE")
    with running(model, data) as rig:
        rig.ingest(DOCUMENTS)
        rig.ingest([{"doc_id": "gone", "text": "A zebrafinch that is gone."}])
        rig.http.delete("/admin/documents/gone")
        before = found(rig)
    waiting = asyncio.run(leave_waiting(data))
    kv = data / "kv" / "ab"
    kv.mkdir(parents=True, exist_ok=True)
    (kv / "chunk").write_bytes(b"zebrafinch" * 10)
    assert len(list((data / "spool").iterdir())) == 1
    (data / "spool" / "orphan").write_bytes(b"aardvarkish, of an upload that was cut off")
    return before, waiting


async def leave_waiting(data: Path) -> str:
    """Accept a job of two documents, as a gateway that ends at once; return its id."""
    database = jobs_database(data / "jobs.sqlite3")
    database.start()
    spool = SpoolFolder(data / "spool")
    store = JobStore(database, spool)
    store.start()
    upload = spool.upload()
    documents = [
        await upload.hold(IngestDocument(name, "default", kind, text.encode(), "Quillwork"))
        for name, kind, text in (("large", "html", LARGE), ("small", "text", SMALL))
    ]
    job_id = store.begin("")
    store.spool(job_id, documents)
    store.accept(job_id, None, b"digest")
    await upload.close()
    database.close()
    return job_id


def found(rig: Rig) -> Any:
    """Passages by meaning, by words, and behind a filter."""
    bodies = [
        {"query": "zebrafinch number 7", "top_k": 3, "retrieval": "dense"},
        {"query": '"zebrafinch number 7"', "top_k": 3, "retrieval": "sparse"},
        {"query": "birdhouse", "top_k": 3, "filter": {"topic": "marginalia 12"}},
    ]
    hits = [rig.http.post("/v1/search", json=body).json()["results"] for body in bodies]
    return [[(hit["chunk_id"], hit["title"], hit["text"]) for hit in each] for each in hits]


def in_clear(data: Path) -> dict[str, list[bytes]]:
    """By file the secrets that stand in it."""
    held = {
        str(path.relative_to(data)): [s for s in SECRETS if s in path.read_bytes()]
        for path in sorted(data.rglob("*")) if path.is_file()
    }  # fmt: skip
    return {name: those for name, those in held.items() if those}


def sealed_documents(data: Path) -> int:
    with sqlite3.connect(f"file:{data / 'catalog.db'}?mode=ro", uri=True) as catalog:
        query = "SELECT count(*) FROM documents WHERE substr(text, 1, ?) = ?"
        count: int = catalog.execute(query, (len(TEXT_PREFIX), TEXT_PREFIX)).fetchone()[0]
    catalog.close()
    return count


def command(data: Path) -> list[str]:
    return ["encryption", "encrypt", "--data-dir", str(data), "--json"]


def test_everything_is_sealed_and_serves_as_before(
    tmp_path: Path, data: Path, master: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = make_folder(tmp_path / "model")
    before, waiting = fill(model, data, monkeypatch)
    assert before[0] and before[1] and len(before[2]) == 1
    assert {"catalog.db", "jobs.sqlite3", "kv/ab/chunk"} < set(in_clear(data))
    assert any(name.startswith("spool/") for name in in_clear(data))
    monkeypatch.setenv("KVSTITCH_ENCRYPTION_KEY_FILE", str(master))
    assert main(command(data)) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["documents"] == len(DOCUMENTS) and done["uploads"] == 1 and done["kv_files"] >= 1
    assert done["job_rows"] >= 1 and done["index_files"] == 1
    assert in_clear(data) == {}
    assert not (data / "spool" / "orphan").exists()
    assert main(command(data)) == 0  # nothing is left to do
    assert set(json.loads(capsys.readouterr().out).values()) == {0}
    with running(model, data) as rig:
        assert found(rig) == before
        assert rig.finished(waiting)["state"] == "succeeded"
        assert rig.http.get("/admin/documents/large").json()["text"].strip() == SENTENCE
        assert rig.http.get("/admin/documents/d3").json()["metadata"] == DOCUMENTS[3]["metadata"]
    assert in_clear(data) == {}


def test_it_goes_on_after_kills(
    tmp_path: Path, data: Path, master: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Killed with some documents sealed, then with a file that it waits for, then let through."""
    model = make_folder(tmp_path / "model")
    before, waiting = fill(model, data, monkeypatch)
    monkeypatch.setenv("KVSTITCH_ENCRYPTION_KEY_FILE", str(master))
    for sealed in (1, 8):
        kill_when(data, lambda sealed=sealed: sealed_documents(data) >= sealed)
    # It gets no further than a file that nobody writes.
    (upload,) = [path for path in (data / "spool").iterdir() if path.name != "orphan"]
    held = upload.rename(tmp_path / "held")
    os.mkfifo(upload)
    kill_when(data, lambda: sealed_documents(data) == len(DOCUMENTS) and _opened(upload))
    upload.unlink()
    held.rename(upload)
    assert in_clear(data)
    assert main(command(data)) == 0
    assert json.loads(capsys.readouterr().out)["uploads"] == 1
    assert in_clear(data) == {}
    with running(model, data) as rig:
        assert found(rig) == before
        assert rig.finished(waiting)["state"] == "succeeded"
        assert rig.http.get("/admin/documents/large").json()["text"].strip() == SENTENCE


def _opened(fifo: Path) -> bool:
    """Whether somebody waits for what is written to it."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def kill_when(data: Path, so_far: Any) -> None:
    """Start the command, and kill it as soon as it is so far."""
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli", *command(data)], stdout=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + WAIT_S
        while not so_far():
            assert process.poll() is None, "it ended before"
            assert time.monotonic() < end, "it does not get there"
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


def test_what_it_refuses(
    data: Path, master: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(command(data)) == 2
    assert "holds no catalog" in capsys.readouterr().err
    monkeypatch.setenv("KVSTITCH_DATABASE", "postgresql://nobody@127.0.0.1:1/none")
    assert main(command(data)) == 2
    assert "PostgreSQL" in capsys.readouterr().err
    monkeypatch.delenv("KVSTITCH_ENCRYPTION_KEY_FILE")
    monkeypatch.delenv("KVSTITCH_DATABASE")
    assert main(command(data)) == 2
    assert "nothing is encrypted here" in capsys.readouterr().err


def test_a_sealed_folder_moves_to_postgresql(
    tmp_path: Path, data: Path, master: Path, postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = make_folder(tmp_path / "model")
    before, waiting = fill(model, data, monkeypatch)
    move = ["migrate", "--from", str(data), "--to", postgresql_url]
    monkeypatch.setenv("KVSTITCH_ENCRYPTION_KEY_FILE", str(master))
    assert main(move) == 2
    assert "in the clear" in capsys.readouterr().err
    assert main(command(data)) == 0
    monkeypatch.delenv("KVSTITCH_ENCRYPTION_KEY_FILE")
    assert main(move) == 2
    assert "no master key is set" in capsys.readouterr().err
    monkeypatch.setenv("KVSTITCH_ENCRYPTION_KEY_FILE", str(master))
    assert main(move) == 0
    with psycopg.connect(postgresql_url) as connection:
        for schema, table in connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'kvstitch%'"
        ).fetchall():
            rows = connection.execute(f"SELECT t::text FROM {schema}.{table} t").fetchall()
            text = "\n".join(row[0] or "" for row in rows).encode()
            for secret in SECRETS:
                assert secret not in text and secret.hex().encode() not in text, table
    with running(model, data, database=postgresql_url) as rig:
        assert found(rig) == before
        assert rig.finished(waiting)["state"] == "succeeded"
        assert rig.http.get("/admin/documents/large").json()["text"].strip() == SENTENCE
