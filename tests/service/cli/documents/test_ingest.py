"""Files to documents, and `kvstitch ingest` against a running service with a fake worker."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from kvstitch.client import Client
from kvstitch.service.cli import main
from kvstitch.service.cli.documents.folder_sync import _sha256 as sync_digest
from kvstitch.service.cli.documents.sending import batches, submit
from kvstitch.service.cli.documents.sources import (
    COMPANION,
    HIDDEN,
    HIDDEN_FILE,
    OUTSIDE,
    DocumentToSend,
    Read,
    SkippedFile,
    UnsendableDocument,
    count,
    open_below,
    read,
    scan,
)
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig

__all__ = ["folder", "rig"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    (docs / "north").mkdir(parents=True)
    (docs / "north" / "oslo.md").write_text("intro\n# The City of Oslo\nOslo is in Norway.\n")
    (docs / "rome.txt").write_text("# no title here\nRome is in Italy.")
    (docs / "page.html").write_text("<title>Page</title><p>Bergen is rainy.</p>")
    (docs / "more.jsonl").write_text(
        '{"doc_id": "x/1", "text": "Paris.", "title": "P", "other": 1}\n\n'
        '{"doc_id": "x/2", "text": "Bern.", "metadata": {"a": 1}, "readers": ["board"]}\n'
    )
    (docs / "image.png").write_bytes(b"\x89PNG")
    return docs


def found(*paths: object) -> dict[str, DocumentToSend | UnsendableDocument]:
    documents = read(scan([str(p) for p in paths]).sources, {"b": 2})
    return {d.doc_id: d for d in documents if not isinstance(d, SkippedFile)}


def test_files_become_documents(files: Path) -> None:
    seen = scan([str(files), str(files / "rome.txt")])
    assert count(seen.sources) == 5 and not seen.failed
    assert [(Path(f.path).name, f.reason) for f in seen.skipped] == [
        ("image.png", "of another kind"), ("rome.txt", "the same file as another"),
    ]  # fmt: skip
    documents = found(files)
    assert set(documents) == {"north/oslo.md", "rome.txt", "page.html", "x/1", "x/2"}
    row = documents["x/2"]
    assert isinstance(row, DocumentToSend)
    assert json.loads(row.content)["metadata"] == {"b": 2, "a": 1}
    assert json.loads(row.content)["readers"] == ["board"], "else the whole tenant would read it"
    assert b"other" not in getattr(documents["x/1"], "content", b"other")


def test_a_pattern_names_documents_below_its_fixed_part(files: Path) -> None:
    assert set(found(f"{files}/**/*.md")) == {"north/oslo.md"}
    assert set(found(f"{files}/*.txt", files / "north" / "oslo.md")) == {"rome.txt", "oslo.md"}


def test_what_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "one.txt").write_text("one")
    (tmp_path / "b" / "one.txt").write_text("another")
    (tmp_path / 'q".txt').write_text("quoted")
    (tmp_path / "bad.jsonl").write_text('{"doc_id": "a"}\n{"doc_id": "b", "text": "b"}\n[]\n')
    all_of = [str(tmp_path / "a"), str(tmp_path / "b"), *map(str, sorted(tmp_path.glob("*.*")))]
    read_now: list[Read] = list(read(scan(all_of).sources, {}))
    assert [d.doc_id for d in read_now if isinstance(d, DocumentToSend)] == ["one.txt", "b"]
    messages = "\n".join(d.message for d in read_now if isinstance(d, UnsendableDocument))
    for part in ("already that of", "quotes", "line 1", "line 3"):
        assert part in messages


def test_names_of_macs_and_files_that_programs_leave_beside_others(tmp_path: Path) -> None:
    typed = "Größe 1.md"
    (tmp_path / unicodedata.normalize("NFD", typed)).write_text("one")
    for name in ("._Report.pdf", "~$letter.docx", ".~lock.sheet.xlsx#", ".#notes.md", "._a.md"):
        (tmp_path / name).write_bytes(b"\0\5\26\7")
    found = scan([str(tmp_path)])
    assert [source.doc_id for source in found.sources] == [typed] and not found.failed
    assert {file.reason for file in found.skipped} == {COMPANION}
    assert len(found.skipped) == 5
    assert [s.doc_id for s in scan([str(tmp_path / "*.md")]).sources] == [typed]


def test_links_out_of_the_folder_and_hidden_files_are_skipped_and_named(tmp_path: Path) -> None:
    """Whoever may write into a folder cannot have other files of its reader stored."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / ".private").mkdir()
    (folder / "own.txt").write_text("own")
    (folder / "below" / "inside.txt").write_text("inside")
    (folder / ".env.txt").write_text("key")
    (folder / ".private" / "key.txt").write_text("key")
    (folder / "absolute.txt").symlink_to(secret)
    (folder / "below" / "relative.txt").symlink_to("../../secret.txt")
    (folder / "chain.txt").symlink_to("absolute.txt")
    (folder / "passwd.txt").symlink_to("/etc/passwd")
    (folder / "again.txt").symlink_to("below/inside.txt")
    (folder / "up").symlink_to(tmp_path)
    out = {"absolute.txt", "relative.txt", "chain.txt", "passwd.txt"}
    found = scan([str(folder)])
    assert {source.path.name for source in found.sources} == {"own.txt", "again.txt"}
    skipped = {Path(file.path).name: file.reason for file in found.skipped}
    assert {name for name, reason in skipped.items() if reason == OUTSIDE} == out
    assert skipped[".env.txt"] == HIDDEN_FILE and skipped["key.txt"] == HIDDEN
    assert skipped["up"] == "a link to a folder" and not found.failed
    # A pattern goes through linked folders, and the folder itself may be a link.
    matched = {s.path.name for s in scan([f"{folder}/**/*.txt"]).sources}
    assert matched & {"own.txt"} and not matched & {*out, "secret.txt"}
    (tmp_path / "link").symlink_to(folder)
    assert len(scan([str(tmp_path / "link")]).sources) == 2
    hidden = {source.doc_id for source in scan([str(folder)], hidden=True).sources}
    assert hidden == {"own.txt", "again.txt", ".env.txt", ".private/key.txt"}
    # What somebody names is meant.
    assert [s.doc_id for s in scan([str(folder / "absolute.txt")]).sources] == ["absolute.txt"]


def test_what_takes_a_file_s_place_after_the_scan_is_not_read(tmp_path: Path) -> None:
    """Whoever may write there swaps a file, or a folder on the way to it, for a link or a pipe."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "a.txt").write_text("secret")
    (secret / "rows.jsonl").write_text('{"doc_id": "x", "text": "secret"}')
    folder = tmp_path / "folder"
    for name in ("one", "two", "three"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.txt").write_text("own")
    (folder / "rows.jsonl").write_text('{"doc_id": "y", "text": "own"}')
    seen = scan([str(folder)])
    assert len(seen.sources) == 4
    (folder / "one" / "a.txt").unlink()
    (folder / "one" / "a.txt").symlink_to(secret / "a.txt")
    shutil.rmtree(folder / "two")
    (folder / "two").symlink_to(secret)
    (folder / "three" / "a.txt").unlink()
    os.mkfifo(folder / "three" / "a.txt")
    (folder / "rows.jsonl").unlink()
    (folder / "rows.jsonl").symlink_to(secret / "rows.jsonl")
    assert count(seen.sources) == 4
    documents = list(read(seen.sources, {}))
    said = {d.doc_id: d.reason for d in documents if isinstance(d, UnsendableDocument)}
    out = f"cannot be read: {OUTSIDE}"
    assert said == {"one/a.txt": out, "two/a.txt": out, "rows.jsonl": out,
                    "three/a.txt": "cannot be read: no regular file"}  # fmt: skip
    assert len(documents) == 4 and not sync_digest(seen.sources[0])


def test_a_link_that_is_made_while_a_file_is_opened_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrowest race: the path has been looked at, and is not open yet."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.txt").write_text("secret")
    real = os.path.realpath
    for swapped in ("below", "below/a.txt"):
        folder = tmp_path / swapped.replace("/", "_")
        (folder / "below").mkdir(parents=True)
        file = folder / "below" / "a.txt"
        file.write_text("own")

        def swap(path: Any, folder: Path = folder, swapped: str = swapped) -> str:
            found = real(path)
            if str(path).endswith("a.txt") and not (folder / swapped).is_symlink():
                (folder / swapped).rename(folder / "away")
                (folder / swapped).symlink_to(real(tmp_path / Path("secret") / swapped[6:]))
            return found

        monkeypatch.setattr(os.path, "realpath", swap)
        with pytest.raises(OSError):
            open_below(folder, file)
        monkeypatch.undo()
        assert (folder / "below" / "a.txt").read_text() == "secret", "it was in time"


def test_batches_are_of_one_kind_and_bounded() -> None:
    rows = [DocumentToSend(str(n), "application/x-ndjson", b"{}") for n in range(5)]
    texts = [DocumentToSend(str(n), "text/plain", b"t") for n in range(3)]
    cut = list(batches([*rows, *texts], 2))
    assert sorted(len(batch) for batch in cut) == [1, 1, 2, 2, 2]
    assert all(len({d.media_type for d in batch}) == 1 for batch in cut)
    large = [DocumentToSend(str(n), "text/plain", b"x" * 20_000_000) for n in range(3)]
    assert [len(batch) for batch in batches(large, 100)] == [2, 1]


def test_ingest(rig: Rig, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--url", rig.url]
    given = ["ingest", str(files), "--batch", "2", "--collection", "c", "--metadata", "year=2024"]
    assert main([*given, *url]) == 0
    assert "5 documents in 5 chunks, 0 failed (5 created)" in capsys.readouterr().out
    documents = rig.http.get("/admin/documents", params={"collection": "c"}).json()["documents"]
    stored = {d["doc_id"]: d for d in documents}
    assert stored["north/oslo.md"]["title"] == "The City of Oslo"
    assert stored["rome.txt"]["title"] == "rome" and stored["page.html"]["title"] == "Page"
    assert all(d["metadata"]["year"] == 2024 for d in documents)
    assert main([*given, "--json", *url]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["changes"]["unchanged"] == 5 and again["stored"] == 5 and not again["errors"]


def test_what_was_deleted_can_be_ingested_again(rig: Rig, files: Path) -> None:
    given = ["ingest", str(files / "rome.txt"), "--url", rig.url]
    assert main(given) == 0
    rig.http.delete("/admin/documents/rome.txt")
    assert main(given) == 0
    assert rig.http.get("/admin/documents/rome.txt").status_code == 200


def test_a_batch_that_is_under_way_is_not_sent_again(rig: Rig) -> None:
    """What a second `ingest` of the same files finds while the first one's job is open."""
    assert rig.worker is not None
    rig.worker.chunks_held = True
    batch = [DocumentToSend(f"{n}.txt", "text/plain", b"word %d" % n) for n in range(30)]
    with Client(rig.url) as client:
        first = submit(client, batch, collection=None, metadata={})
        second = submit(client, batch, collection=None, metadata={})
        assert not second.ended and first.job_id == second.job_id
        other = submit(client, batch, collection="c", metadata={})
        assert other.job_id != first.job_id


def test_documents_that_fail_are_named(
    rig: Rig, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "broken.pdf").write_bytes(b"%PDF-1.4 nothing more")
    (files / "latin.txt").write_bytes("café".encode("latin-1"))
    (files / "rows.jsonl").write_text('{"doc_id": "", "text": "x"}\n{"doc_id": "r", "text": "r"}\n')
    assert main(["ingest", str(files), "--url", rig.url]) == 1
    out = capsys.readouterr()
    assert "6 documents in 6 chunks, 3 failed" in out.out
    for part in ("broken.pdf: ", "iconv", "doc_id"):
        assert part in out.err
    assert main(["ingest", str(files), "--json", "--url", rig.url]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["failed"] == 3 == len(result["errors"]) and result["documents"] == 9


def test_wrong_input_sends_nothing(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    for given, part in (
        (["/no/such/file.txt"], "cannot be read"),
        (["/no/such/*.txt"], "matches no file"),
        ([str(Path(__file__).parent / "__init__.py"), "--metadata", "x"], "NAME=VALUE"),
        ([str(Path(__file__)), "--collection", "x" * 200], "collection"),
    ):
        assert main(["ingest", *given, "--url", rig.url]) == 2
        assert part in capsys.readouterr().err
    assert rig.http.get("/admin/jobs").json()["jobs"] == []


def test_without_waiting(rig: Rig, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", str(files), "--no-wait", "--url", rig.url]) == 0
    jobs = capsys.readouterr().out.split()
    assert len(jobs) == 2
    with Client(rig.url) as client:
        assert all(client.wait(job_id, timeout_s=240).ended for job_id in jobs)
