"""Large uploads on disk: streamed, kept over crashes, and removed when they are not needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile
from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.documents.jobs.spool_folder import INLINE_BYTES, SpoolFolder
from kvstitch.service.gateway.service_database import jobs_database
from kvstitch.service.gateway.tables import documents, freed_files
from tests.service.gateway.documents.pdfs import make_pdf
from tests.service.gateway.rig import HANG_S, Rig, running, until

WORDS = "The kettle of the north is warm. "
LARGE = (WORDS * 5000).encode()  # 165 kB
assert len(LARGE) > INLINE_BYTES


def spooled(data: Path) -> list[Path]:
    return sorted((data / "spool").iterdir())


def post(rig: Rig, files: list[tuple[str, bytes, str]]) -> httpx.Response:
    return rig.http.post("/admin/precompute", files=[("file", file) for file in files])


def away(rig: Rig) -> None:
    """Nothing is indexed: the loop stops where it is."""
    rig.call(rig.gateway.corpus.ingestion.indexing.close)


def back(rig: Rig) -> None:
    async def start() -> None:
        rig.gateway.corpus.ingestion.indexing.start()

    rig.call(start)


@pytest.mark.parametrize(
    "bom", [pytest.param(b"", marks=pytest.mark.slow), b"\xef\xbb\xbf"], ids=["plain", "bom"]
)
def test_a_large_file_goes_through_a_file(rig: Rig, data: Path, bom: bytes) -> None:
    away(rig)
    large_pdf = make_pdf(["One." + " kettle" * 20_000])
    reply = post(
        rig,
        [
            ("large.txt", bom + LARGE, "text/plain"),
            ("large.md", bom + b"# Head\n\n" + LARGE, "text/markdown"),
            ("large.pdf", large_pdf, "application/pdf"),
            ("small.txt", b"small", "text/plain"),
        ],
    )
    assert reply.status_code == 202, reply.text
    assert len(spooled(data)) == 3
    sizes = sorted(path.stat().st_size for path in spooled(data))
    assert sizes == sorted([len(bom + LARGE), len(bom + LARGE) + 8, len(large_pdf)])
    held = (data / "jobs.sqlite3").read_bytes() + (data / "jobs.sqlite3-wal").read_bytes()
    assert WORDS.encode() not in held and b"small" in held
    back(rig)
    job = rig.finished(reply.json()["job_id"])
    assert job["state"] == "succeeded", job
    text = rig.http.get("/admin/documents/large.txt").json()["text"]
    assert text.encode() == LARGE
    markdown = rig.http.get("/admin/documents/large.md").json()
    assert markdown["text"].encode() == b"# Head\n\n" + LARGE
    assert markdown["marks"] == [{"start": 0, "kind": "heading", "label": "Head"}]
    assert rig.http.get("/admin/documents/large.pdf").json()["text"].startswith("One.")
    assert spooled(data) == []


@pytest.mark.parametrize("kind", ["json", "lines", "body"])
def test_every_other_way_in(rig: Rig, data: Path, kind: str) -> None:
    away(rig)
    text, path = LARGE.decode(), "/admin/precompute"
    if kind == "json":
        reply = rig.http.post(path, json={"documents": [{"doc_id": "d", "text": text}]})
    elif kind == "lines":
        line = b'{"doc_id": "d", "text": "%b"}\n' % LARGE
        reply = rig.http.post(path, content=line, headers={"Content-Type": "application/x-ndjson"})
    else:
        headers = {"Content-Type": "text/plain"}
        reply = rig.http.post(path, content=LARGE, headers=headers, params={"doc_id": "d"})
    assert reply.status_code == 202 and len(spooled(data)) == 1
    back(rig)
    assert rig.finished(reply.json()["job_id"])["state"] == "succeeded"
    assert rig.http.get("/admin/documents/d").json()["text"] == text
    assert spooled(data) == []


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (("large.txt", b"twice the same name", "text/plain"), 422),
        (("huge.txt", b"x" * (33 << 20), "text/plain"), 413),
    ],
)
def test_what_is_refused_leaves_no_file(
    rig: Rig, data: Path, last: tuple[str, bytes, str], status: int
) -> None:
    reply = post(rig, [("large.txt", LARGE, "text/plain"), last])
    assert reply.status_code == status, reply.text
    until(lambda: spooled(data) == [], "the files are removed")
    assert rig.http.get("/admin/jobs").json()["jobs"] == []


def test_an_upload_that_is_cut_off_leaves_no_file(rig: Rig, data: Path) -> None:
    go_on = threading.Event()
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.txt"\r\n\r\n'

    class CutOff(Exception):
        pass

    def body() -> Iterator[bytes]:
        yield head + LARGE
        assert go_on.wait(HANG_S)
        raise CutOff

    def send() -> None:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        with pytest.raises(CutOff):
            httpx.post(
                f"{rig.url}/admin/precompute", content=body(), headers=headers, timeout=HANG_S
            )

    sending = threading.Thread(target=send)
    sending.start()
    until(lambda: len(spooled(data)) == 1, "the file is being written")
    go_on.set()
    sending.join()
    until(lambda: spooled(data) == [], "the file is removed")


def test_deleting_a_waiting_document_and_cancelling_remove_its_file(rig: Rig, data: Path) -> None:
    away(rig)
    reply = post(rig, [(f"{n}.txt", LARGE, "text/plain") for n in range(3)])
    assert len(spooled(data)) == 3
    assert rig.http.delete("/admin/documents/1.txt").status_code == 200
    assert len(spooled(data)) == 2
    assert rig.http.delete(f"/admin/jobs/{reply.json()['job_id']}").status_code == 200
    assert spooled(data) == []


def test_a_file_that_was_removed_fails_its_document_alone(rig: Rig, data: Path) -> None:
    away(rig)
    reply = post(
        rig,
        [("a.txt", LARGE, "text/plain"), ("b.html", LARGE, "text/html"), ("c.txt", b"c", "")],
    )
    for path in spooled(data):
        path.unlink()
    back(rig)
    job = rig.finished(reply.json()["job_id"])
    assert job["progress"] == {"done": 1, "failed": 2, "cancelled": 0, "total": 3}
    assert all("ingest it again" in error["message"] for error in job["errors"])


def test_an_acknowledged_upload_survives_and_an_orphan_does_not(folder: Path, data: Path) -> None:
    """A process that dies right after it has answered; another died while a file came in."""
    with running(folder, data) as rig:
        away(rig)
        job_id = post(rig, [("a.txt", LARGE, "text/plain")]).json()["job_id"]
    (data / "spool" / "orphan").write_bytes(LARGE)
    with running(folder, data) as rig:
        assert not (data / "spool" / "orphan").exists()
        assert rig.finished(job_id)["state"] == "succeeded"
        assert rig.http.get("/admin/documents/a.txt").json()["text"].encode() == LARGE
        assert spooled(data) == []


async def test_a_crash_between_forgetting_a_file_and_removing_it(tmp_path: Path) -> None:
    database = jobs_database(tmp_path / "jobs.sqlite3")
    database.start()
    spool = SpoolFolder(tmp_path / "spool")
    store = JobStore(database, spool)
    store.start()
    upload = spool.upload()
    held = [
        await upload.hold(IngestDocument(name, "default", "text", LARGE)) for name in ("a", "b")
    ]
    job_id = store.begin("")
    store.spool(job_id, held[:1])
    await upload.close()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [name_of(held[0])]
    store.accept(job_id, None, b"")
    assert held[0].digest() == IngestDocument("a", "default", "text", LARGE).digest()
    with database.write() as write:  # as the store does it, without what comes next
        write.execute(documents.update().values(state="cancelled", spooled=None))
    assert list((tmp_path / "spool").iterdir())
    JobStore(database, spool).start()
    assert not list((tmp_path / "spool").iterdir())
    with database.read() as read:
        assert not read.execute(freed_files.select()).all()
    database.close()


def name_of(document: IngestDocument) -> str:
    assert isinstance(document.content, SpooledFile)
    return document.content.path.name
