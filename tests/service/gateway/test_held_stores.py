"""A store that somebody else holds: 503 or 507 with Retry-After within seconds, never 500, and all
goes on when it is let go. docs/operations.md has the table."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.data_folder import read_only
from tests.postgresql_server import postgresql_server
from tests.redis_server import redis_server
from tests.service.gateway.rig import running, until

WITHIN_S = 20.0  # one wait for a lock takes 5, on a busy machine more
LOCK = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""
WORDS = "The kettle has a lid and a handle. "
# A superuser has all rights, so the table takes its own away by a trigger that says so.
TAKE_AWAY = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE insufficient_privilege; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON kvstitch_service.jobs EXECUTE FUNCTION refuse()
"""
GIVE_BACK = "DROP FUNCTION IF EXISTS refuse CASCADE"


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process is writing into a database file, and does not come to an end."""
    command = [sys.executable, "-c", LOCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.stdin.close()


def document(size: int = 1) -> dict[str, Any]:
    return {"documents": [{"doc_id": "kettle", "text": WORDS * size}]}


def refused(response: httpx.Response, started: float, *statuses: int) -> dict[str, Any]:
    assert response.status_code in statuses, response.text
    assert int(response.headers["retry-after"]) >= 1
    assert time.monotonic() - started < WITHIN_S
    found: dict[str, Any] = response.json()
    return found.get("error", found)


@pytest.mark.parametrize(
    ("file", "method", "path", "body"),
    [
        ("jobs.sqlite3", "POST", "/admin/precompute", document()),
        ("catalog.db", "DELETE", "/admin/documents/oslo", None),
        ("catalog.db", "PUT", "/admin/pins/oslo", None),
        ("catalog.db", "POST", "/admin/renames", {"doc_id": "oslo", "new_id": "Oslo"}),
        ("audit.sqlite3", "POST", "/v1/rag/generate", {"question": "Is Bergen rainy?"}),
        ("audit.sqlite3", "POST", "/v1/chat/completions",
         {"messages": [{"role": "user", "content": "Is Bergen rainy?"}]}),
        ("audit.sqlite3", "POST", "/v1/search", {"query": "rain"}),
    ],
)  # fmt: skip
def test_a_database_that_another_process_writes(
    folder: Path, data: Path, file: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    with running(folder, data, audit=True) as rig:
        rig.ingest()
        with locked(data / file):
            started = time.monotonic()
            error = refused(rig.http.request(method, path, json=body), started, 503)
            assert error["code"] == "database_unavailable"
            assert rig.http.get("/admin/documents/bergen").status_code == 200, "reading goes on"
        assert rig.http.request(method, path, json=body).status_code < 300


def test_a_job_waits_for_a_catalog_that_another_process_writes(folder: Path, data: Path) -> None:
    with running(folder, data) as rig:
        with locked(data / "catalog.db"):
            job = rig.http.post("/admin/precompute", json=document())
            assert job.status_code == 202
            time.sleep(6.0)
            said = rig.http.get(f"/admin/jobs/{job.json()['job_id']}").json()
            assert said["state"] in ("queued", "running")
        assert rig.finished(job.json()["job_id"])["state"] == "succeeded"


def test_a_limit_of_the_size_of_files(folder: Path, data: Path) -> None:
    """RLIMIT_FSIZE, as of a container or a quota."""
    with running(folder, data, audit=True) as rig:
        rig.ingest()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            for path, body in (
                ("/admin/precompute", document(10_000)),
                ("/v1/rag/generate", {"question": "Is Bergen rainy?"}),
            ):
                started = time.monotonic()
                refused(rig.http.post(path, json=body), started, 503, 507)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        until(lambda: rig.ask(question="Is Bergen rainy?").status_code == 200, "the limit is gone")
        assert rig.ingest(document(10)["documents"])["state"] == "succeeded"


def test_a_folder_of_uploads_that_is_read_only(folder: Path, data: Path) -> None:
    with running(folder, data) as rig:
        rig.ingest()
        with read_only(spool := data / "spool"):
            started = time.monotonic()
            error = refused(rig.http.post("/admin/precompute", json=document(10_000)), started, 503)
            said = error["detail"]
            assert "Read-only file system" in said and str(spool) not in said
        assert rig.ingest(document()["documents"])["state"] == "succeeded"


def test_an_index_that_is_read_only(folder: Path, data: Path) -> None:
    """Vectors are in the catalog, too: nothing is lost, and all goes on afterwards."""
    with running(folder, data) as rig:
        rig.ingest()
        with read_only(data / "index"):
            started = time.monotonic()
            assert rig.ask(question="Is Bergen rainy?").status_code == 200
            job = rig.http.post("/admin/precompute", json=document())
            assert job.status_code == 202
            reply = rig.http.delete("/admin/documents/oslo")
            assert reply.status_code == 200 or refused(reply, started, 503)
            assert time.monotonic() - started < WITHIN_S
        assert rig.finished(job.json()["job_id"])["state"] == "succeeded"
    with running(folder, data) as rig:
        found = [one["doc_id"] for one in rig.http.get("/admin/documents").json()["documents"]]
        assert {"kettle", "bergen", "rome"} <= set(found)
        answer = rig.ask(question="kettle lid handle", include_text=True).json()
        assert any(c["doc_id"] == "kettle" for c in answer["citations"])


def test_keys_are_read_while_another_process_writes_them(
    folder: Path, data: Path, create: Callable[..., str]
) -> None:
    key = {"Authorization": f"Bearer {create()}"}
    with running(folder, data) as rig, locked(data / "keys.sqlite3"):
        for _ in range(3):
            started = time.monotonic()
            assert rig.http.get("/admin/documents", headers=key).status_code == 200
            assert rig.http.get("/admin/documents").status_code == 401
            assert time.monotonic() - started < 5.0


def test_encryption_keys_that_another_process_writes(folder: Path, data: Path) -> None:
    """The first document of a tenant needs a key: its job waits, others are answered."""
    with running(folder, data, encryption_key="ab" * 32) as rig:
        assert rig.http.get("/admin/documents").status_code == 200
        with locked(data / "encryption.sqlite3"):
            started = time.monotonic()
            reply = rig.http.post("/admin/precompute", json=document())
            if reply.status_code != 202:
                refused(reply, started, 503)
            assert rig.http.get("/admin/documents").status_code == 200
            assert time.monotonic() - started < WITHIN_S
        assert rig.ingest(document()["documents"])["state"] == "succeeded"


@pytest.mark.parametrize("fault", ["read-only", "locked", "rights taken away"])
def test_a_postgresql_that_somebody_else_holds(folder: Path, data: Path, fault: str) -> None:
    """Read-only as after a failover; a table that an operator has locked; a role without rights."""
    import psycopg

    with postgresql_server() as server:
        url = server.database()
        with running(folder, data, database=url) as rig, psycopg.connect(url) as other:
            rig.ingest()
            if fault == "locked":
                other.execute("LOCK TABLE kvstitch_service.jobs IN EXCLUSIVE MODE")
            else:
                value = "on" if fault == "read-only" else "off"
                other.autocommit = True
                other.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
                other.execute("SELECT pg_reload_conf()")
                if fault != "read-only":
                    other.execute(TAKE_AWAY)
                time.sleep(1.0)
            for method, path, body in (
                ("POST", "/admin/precompute", document()),
                *((("DELETE", "/admin/documents/oslo", None),) if fault == "read-only" else ()),
            ):
                started = time.monotonic()
                error = refused(rig.http.request(method, path, json=body), started, 503)
                assert error["code"] == "database_unavailable"
            assert rig.http.get("/admin/documents/bergen").status_code == 200, "reading goes on"
            if fault == "locked":
                other.rollback()
            else:
                other.execute("SET default_transaction_read_only = off")
                other.execute("ALTER SYSTEM RESET default_transaction_read_only")
                other.execute("SELECT pg_reload_conf()")
                other.execute(GIVE_BACK)
            until(lambda: rig.http.post("/admin/precompute", json=document()).status_code == 202,
                  "it is let go")  # fmt: skip
            assert rig.http.delete("/admin/documents/oslo").status_code == 200


def test_a_clock_that_is_set_back(
    folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(folder, data, audit=True) as rig:
        rig.ingest()
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() - 86_400.0)
        assert rig.ask(question="Is Bergen rainy?").status_code == 200
        assert rig.ingest(document()["documents"])["state"] == "succeeded"
        assert rig.http.delete("/admin/documents/kettle").status_code == 200


def test_counters_in_a_redis_that_is_read_only(folder: Path, data: Path) -> None:
    """A replica after a failover: this gateway counts by itself."""
    limits: dict[str, Any] = {"tenant_requests_per_minute": 1000, "tenant_secret": "ab" * 32}
    with redis_server() as at, running(folder, data, counters_url=at.url, **limits) as rig:
        rig.ingest()
        server = redis.Redis(port=at.port)
        server.replicaof("127.0.0.1", 9)  # nobody is there, and a replica takes no writes
        try:
            for _ in range(3):
                started = time.monotonic()
                assert rig.ask(question="Is Bergen rainy?").status_code == 200
                assert time.monotonic() - started < WITHIN_S
        finally:
            server.replicaof("NO", "ONE")
        assert rig.ask(question="Is Bergen rainy?").status_code == 200
