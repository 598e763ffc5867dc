"""A full disk: what is refused, what waits, what goes on, and how it passes."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstitch.service.errors import DiskFull
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.data_folder import DiskGuard
from kvstitch.service.gateway.service_database import jobs_database
from kvstitch.service.gateway.tables import contents
from kvstitch.service.settings import load
from tests.service.gateway.rig import Rig, running, until

KIB = 1024
WORDS = "The kettle has a lid and a handle. "


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 32 MiB."""
    path = Path(tempfile.mkdtemp(prefix="kv-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(path)], capture_output=True
    )
    if mounted.returncode:
        path.rmdir()
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
    path.rmdir()


def fill(disk: Path, leave: int = 0) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 * KIB))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        if leave:
            file.truncate(max(0, file.tell() - leave))
    return filler


def test_requests_while_the_disk_is_full(folder: Path, small_disk: Path) -> None:
    with running(folder, small_disk) as rig:
        rig.ingest()
        filler = fill(small_disk)
        large = {"documents": [{"doc_id": "large", "text": WORDS * 10_000}]}
        for _ in range(3):
            refused = rig.http.post("/admin/precompute", json=large)
            assert refused.status_code == 507, refused.text
            problem = refused.json()
            assert problem["code"] == "disk_full"
            assert str(small_disk) in problem["detail"] and "delete files" in problem["detail"]
        assert rig.http.delete("/admin/documents/oslo").status_code in (200, 507)
        ready = rig.http.get("/health/ready")
        assert ready.status_code == 200 and ready.json()["status"] == "degraded"
        assert "is full" in ready.json()["reason"]
        assert "is full" in rig.http.get("/status").json()["reason"]
        assert rig.ask(question="Is Bergen rainy?").status_code == 200
        assert rig.http.get("/admin/documents/bergen").status_code == 200
        filler.unlink()
        until(lambda: rig.http.get("/health/ready").json()["status"] == "ready", "there is room")
        assert rig.ingest(large["documents"])["state"] == "succeeded"
        assert [job["progress"]["total"] for job in jobs(rig)] == [1, 3], "refused ones are gone"
        assert rig.http.delete("/admin/documents/bergen").status_code == 200


def test_a_job_says_what_it_waits_for_and_goes_on(folder: Path, small_disk: Path) -> None:
    with running(folder, small_disk) as rig:
        rig.ingest()
        # Room for the upload, and not for the catalog, which holds the text and its words.
        filler = fill(small_disk, leave=1500 * KIB)
        documents = [{"doc_id": "large", "text": WORDS * 10_000}]
        accepted = rig.http.post("/admin/precompute", json={"documents": documents})
        assert accepted.status_code == 202, accepted.text
        path = f"/admin/jobs/{accepted.json()['job_id']}"

        def full() -> str | None:  # before it tries, it may wait for its turn
            said: str = rig.http.get(path).json()["waiting"] or ""
            return said if "is full" in said else None

        assert "go on as soon as there is room" in until(full, "the job waits for room")
        assert rig.http.get(path).json()["errors"] == []
        filler.unlink()
        assert rig.finished(accepted.json()["job_id"])["state"] == "succeeded"
        assert rig.http.get(path).json()["waiting"] is None
        assert rig.http.get("/admin/documents/large").status_code == 200


def test_a_start_says_that_the_disk_is_full(folder: Path, small_disk: Path) -> None:
    fill(small_disk)
    gateway = Gateway(load(model=str(folder), data_dir=small_disk / "data"), folder)
    try:
        with pytest.raises(DiskFull, match="is full"):
            gateway.claim()
    finally:
        asyncio.run(gateway.close())


def jobs(rig: Rig) -> list[dict[str, dict[str, int]]]:
    found: list[dict[str, dict[str, int]]] = rig.http.get("/admin/jobs").json()["jobs"]
    return found


def test_a_database_that_cannot_grow_is_a_full_disk(tmp_path: Path) -> None:
    database = jobs_database(tmp_path / "jobs.sqlite3", disk := DiskGuard(tmp_path))
    database.start()
    row = {"chunk_id": 1, "digest": bytes(1 << 20)}
    with pytest.raises(DiskFull, match="is full"), database.write() as write:
        (pages,) = write.exec_driver_sql("PRAGMA page_count").one()
        write.exec_driver_sql(f"PRAGMA max_page_count = {pages + 1}")
        write.execute(contents.insert(), row)
    assert disk.reason() is None, "there is room after all"
    with database.read() as read:
        assert read.execute(contents.select()).all() == []
    database.close()


def test_what_a_full_disk_causes_and_what_not(tmp_path: Path) -> None:
    def failed(code: int) -> sqlite3.OperationalError:
        error = sqlite3.OperationalError("failed")
        error.sqlite_errorcode = code
        return error

    disk = DiskGuard(tmp_path)
    for error in (
        OSError(errno.ENOSPC, "no space"),
        OSError(errno.EDQUOT, "quota"),
        failed(sqlite3.SQLITE_FULL),
        RuntimeError("Error in faiss: write: No space left on device"),
    ):
        outer = ValueError("what it became")
        outer.__cause__ = error
        assert disk.recognise(error) is not None and disk.recognise(outer) is not None
    assert disk.reason() is None, "there is room after all"
    for other in (
        OSError(errno.EACCES, "denied"),
        failed(sqlite3.SQLITE_BUSY),
        failed(sqlite3.SQLITE_IOERR),
        RuntimeError("something else"),
    ):
        assert disk.recognise(other) is None
