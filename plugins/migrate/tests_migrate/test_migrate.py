"""`kvstitch migrate`: a service goes on from PostgreSQL as it was."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kvstitch.service.cli import main
from kvstitch.service.gateway.auth.keys import KeyStore
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import DOCUMENTS, Rig, running

LARGE = "A sentence of a large document. " * 5000  # in a file of the spool folder while it waits


def passages(rig: Rig) -> Any:
    asked = {"query": "the capital of Norway", "top_k": 3}
    results = rig.http.post("/v1/search", json=asked).json()["results"]
    return [(hit["chunk_id"], hit["text"], hit["dense_score"]) for hit in results[:2]]


def test_everything_goes_along_and_stored_kv_stays(
    tmp_path: Path, data: Path, postgresql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "model")
    with running(folder, data) as rig:
        rig.ingest(DOCUMENTS)
        receipt = rig.http.delete("/admin/documents/bergen").json()
        before = passages(rig)
        lock = rig.gateway.corpus.documents._purges.catalog_lock
        rig.call(lock.__aenter__)  # nothing is indexed any more
        body = {"documents": [{"doc_id": "large", "text": LARGE}]}
        waiting = rig.http.post("/admin/precompute", json=body).json()["job_id"]
    keys = KeyStore(data / "keys.sqlite3")
    keys.start()
    key, _ = keys.create(name="moved")
    keys.close()
    (data / "kv").mkdir(exist_ok=True)
    (data / "kv" / "chunk").write_bytes(b"kv")

    command = ["migrate", "--from", str(data), "--to", postgresql_url]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "documents": 2, "chunks": 2, "jobs": 2, "receipts": 1, "purges": 0, "keys": 1,
    }  # fmt: skip
    assert main(command) == 2
    assert "the database holds documents already" in capsys.readouterr().err

    with running(folder, data, database=postgresql_url, wait_ready=False) as rig:
        rig.http.headers["Authorization"] = f"Bearer {key}"
        rig.wait_ready()
        assert (data / "kv" / "chunk").exists()
        assert rig.http.get(f"/admin/receipts/{receipt['receipt_id']}").json() == receipt
        assert rig.finished(waiting)["state"] == "succeeded"
        assert passages(rig) == before
        rig.ingest([{"doc_id": "new", "text": "New ids come after those that were copied."}])


def test_nothing_is_copied_if_something_cannot_be(
    tmp_path: Path, data: Path, postgresql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(make_folder(tmp_path / "model"), data) as rig:
        rig.ingest([*DOCUMENTS, {"doc_id": "odd", "text": "A NUL inside."}])
    with sqlite3.connect(data / "catalog.db") as catalog:  # an earlier release took it
        catalog.execute(
            "UPDATE documents SET text = 'A NUL ' || char(0) || ' inside.' WHERE doc_id = 'odd'"
        )
    assert main(["migrate", "--from", str(data), "--to", postgresql_url]) != 0
    assert "'odd'" in capsys.readouterr().err
    with psycopg.connect(postgresql_url) as connection:
        query = "SELECT count(*) FROM kvstitch_catalog.documents"
        assert connection.execute(query).fetchone() == (0,)
