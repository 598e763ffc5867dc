"""A data folder of release 0.1.0 opens, serves, and goes back, as docs/operations.md says.

The folder is tests/data/release_0_1_0.tar.xz, made by that release's own code, which was killed
with a job under way (tests/data/README.md).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.service.settings import demo_model
from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.service import Service
from tests.ops.tools import REPOSITORY
from tests.ports import free_port

COMMIT = "529a47e1"  # which wrote the changelog of 0.1.0
OPS = "kvs_4b680ea2bbd84a04_2d2fcf07025ab1425836eb8b73d9e2f77fa4038c485406e927cce38c36260fde"
ACME = "kvs_2670e049e644f540_3571d2ebde970e80fca4e7b9e51e25e117f88d4f2970050e352f06031d379f1d"
REVOKED = "kvs_9a1f8a7d5c9bef94_f4955c53d852dcd3b30597a7a31eaf7f91c2eadcfecd9e6bb6674236be588ca4"
PENDING_JOB = "73094aa61b5c493bb31afa8b12828ee8"
DATABASES = ("catalog.db", "jobs.sqlite3", "keys.sqlite3")
ANSWERS = [
    (OPS, "Which colour does Quentin Bruvik wear?", "purple"),
    (OPS, "Which animal does Quentin Bruvik keep?", "goat"),
    (ACME, "On which day does Velulf Group pay its workers?", "Friday"),
]


@pytest.fixture
def old_folder(tmp_path: Path) -> Path:
    with tarfile.open(REPOSITORY / "tests" / "data" / "release_0_1_0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def dumped(folder: Path) -> dict[str, list[str]]:
    """All that the databases hold, as SQL."""
    found = {}
    for name in DATABASES:
        with closing(sqlite3.connect(folder / name)) as database:
            found[name] = [*database.iterdump()]
    return found


def backed_up(folder: Path, to: Path) -> None:
    """As the page says, by its own commands."""
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r'```\n(cd "\$KVSTITCH_DATA_DIR".*?)```', page, re.S)
    if shutil.which("sqlite3") is None:
        pytest.skip("there is no sqlite3, which the page's commands call")
    to.mkdir()
    subprocess.run(
        ["sh", "-euc", commands.replace("/backup", str(to))],
        env={**os.environ, "KVSTITCH_DATA_DIR": str(folder)},
        check=True,
    )


def ask(http: httpx.Client, key: str, question: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    reply = http.post("/v1/rag/generate", json={"question": question}, headers=headers)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def check_what_it_holds(service: Service) -> None:
    http = service.http
    ops, acme = ({"Authorization": f"Bearer {key}"} for key in (OPS, ACME))
    assert http.get("/admin/documents").status_code == 401
    revoked = {"Authorization": f"Bearer {REVOKED}"}
    assert http.get("/admin/documents", headers=revoked).status_code == 401
    http.headers.update(ops)

    def job() -> bool:
        found = http.get(f"/admin/jobs/{PENDING_JOB}").json()
        return bool(found["state"] == "succeeded" and found["progress"]["done"] == 3)

    service.until(job, "the job that 0.1.0 began is done")
    listed = http.get("/admin/documents").json()["documents"]
    names = {document["doc_id"] for document in listed}
    assert names == {f"person-0{n}.md" for n in (1, 2, 3, 4, 5, 7, 8, 9)}, "6 was deleted"
    assert all(document["metadata"] == {} for document in listed), "no outline is in it"
    one = http.get("/admin/documents/person-01.md").json()
    assert one["marks"] == [{"start": 0, "kind": "heading", "label": "Quentin Bruvik"}]
    firms = http.get("/admin/documents", params={"collection": "firms"}).json()
    assert [found["metadata"] for found in firms["documents"]] == [{"kind": "firm"}] * 3
    theirs = http.get("/admin/documents", headers=acme).json()["documents"]
    assert [found["doc_id"] for found in theirs] == ["firm-04.md"]
    for key, question, expected in ANSWERS:
        for _ in range(2):  # the second from KV that this release has stored
            assert expected in ask(http, key, question)["text"]
    search = {"query": "Quentin Bruvik", "retrieval": "sparse"}
    hits = http.post("/v1/search", json=search).json()["results"]
    assert hits[0]["doc_id"] == "person-01.md"


@pytest.mark.slow
def test_it_opens_serves_and_goes_back(old_folder: Path, tmp_path: Path) -> None:
    before = dumped(old_folder)
    backup = tmp_path / "backup"
    backed_up(old_folder, backup)
    with Service(demo_model(), old_folder, **IN_PROCESS) as service:
        check_what_it_holds(service)
        gone = service.http.delete("/admin/documents/person-01.md")
        assert gone.status_code == 200 and gone.json()["documents"] == 1
    with Service(demo_model(), old_folder, **IN_PROCESS) as service:  # nothing is done twice
        service.http.headers["Authorization"] = f"Bearer {OPS}"
        assert service.http.get("/status").json()["corpus"]["documents"] == 11
    restored = tmp_path / "restored"
    shutil.copytree(backup, restored)
    assert dumped(restored) == before, "what goes back is what 0.1.0 wrote"
    with Service(demo_model(), restored, **IN_PROCESS) as service:
        check_what_it_holds(service)


@contextmanager
def release_0_1_0(folder: Path, code: Path) -> Iterator[httpx.Client]:
    """The old release, from this repository's history."""
    archive = subprocess.run(
        ["git", "archive", COMMIT, "service", "kvstore", "retriever"],
        cwd=REPOSITORY,
        capture_output=True,
    )
    if archive.returncode:
        pytest.skip("this checkout has no history back to 0.1.0")
    code.mkdir()
    subprocess.run(["tar", "-x"], cwd=code, input=archive.stdout, check=True)
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
    environment |= {"PYTHONPATH": str(code), "KVSTITCH_THREADS": "1"}
    command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port)]
    with (code / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(folder)], cwd=code, env=environment, stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            end = time.monotonic() + 240
            while time.monotonic() < end:
                assert process.poll() is None, (code / "log").read_text()
                try:
                    if http.get("/health/ready").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.2)
            yield http
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_0_1_0_itself_serves_what_was_restored(old_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="0.1.0 needs pypdf")
    backup = tmp_path / "backup"
    backed_up(old_folder, backup)
    with Service(demo_model(), old_folder, **IN_PROCESS) as service:
        check_what_it_holds(service)
    # Of the upgraded folder nothing is used but its KV: what the old release cannot read of that,
    # it removes and computes again.
    shutil.copytree(old_folder / "kv", backup / "kv")
    with release_0_1_0(backup, tmp_path / "code") as http:
        for key, question, expected in ANSWERS:
            assert expected in ask(http, key, question)["text"]
