"""`kvstitch ingest --watch`: a folder that changes, and a service that goes away."""

from __future__ import annotations

import json
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstitch.client import errors
from kvstitch.service.cli import main, parser
from kvstitch.service.cli.documents.watch import Watch
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig, running

__all__ = ["folder", "rig"]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    made = tmp_path / "docs"
    (made / "sub").mkdir(parents=True)
    (made / "a.txt").write_text("one")
    (made / "sub" / "b.md").write_text("# two")
    (made / "rows.jsonl").write_text(rows("r1", "r2"))
    (made / "image.png").write_bytes(b"\x89PNG")
    return made


def rows(*names: str) -> str:
    return "".join(json.dumps({"doc_id": name, "text": name}) + "\n" for name in names)


def args(docs: Path, url: str, *more: str) -> Namespace:
    return parser().parse_args(["ingest", str(docs), "--watch", "--json", "--url", url, *more])


class Rounds:
    """One round after the other, with what each has said."""

    def __init__(self, watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
        self._watch, self._capsys = watch, capsys
        self.stderr = ""

    def __call__(self) -> list[dict[str, Any]]:
        self._watch.round()
        out = self._capsys.readouterr()
        self.stderr = out.err
        return [json.loads(line) for line in out.out.splitlines()]


def stored(rig: Rig) -> dict[str, str]:
    listed = rig.http.get("/admin/documents").json()["documents"]
    return {
        one["doc_id"]: rig.http.get(f"/admin/documents/{one['doc_id']}").json()["text"]
        for one in listed
    }


@pytest.fixture
def rounds(rig: Rig, docs: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Rounds]:
    yield Rounds(Watch(args(docs, rig.url, "--delete-removed"), {}), capsys)


def test_what_is_new_changed_or_gone(rig: Rig, docs: Path, rounds: Rounds) -> None:
    (first,) = rounds()
    assert (first["event"], first["found"], first["ingested"]) == ("ingested", 5, 4)
    assert first["skipped_by_reason"] == {"of another kind": 1}
    assert stored(rig) == {"a.txt": "one", "sub/b.md": "# two", "r1": "r1", "r2": "r2"}
    assert rounds() == [] == rounds(), "nothing has changed"

    (docs / "a.txt").write_text("one, changed")
    (docs / "new.txt").write_text("new")
    assert rounds() == [], "they may still be written"
    with (docs / "new.txt").open("a") as file:
        file.write(" and more")
    (only,) = rounds()
    assert only["found"] == 1 and stored(rig)["a.txt"] == "one, changed"
    (only,) = rounds()
    assert only["found"] == 1 and stored(rig)["new.txt"] == "new and more"

    (docs / "rows.jsonl").write_text(rows("r2", "r3"))
    (docs / "new.txt").unlink()
    assert rounds() == []
    events = rounds()
    assert [e["event"] for e in events] == ["deleted", "ingested", "deleted"]
    assert [e["doc_ids"] for e in events if e["event"] == "deleted"] == [["r1"], ["new.txt"]]
    assert set(stored(rig)) == {"a.txt", "sub/b.md", "r2", "r3"}
    assert rounds() == []


def test_a_file_that_is_replaced_is_not_gone(rig: Rig, docs: Path, rounds: Rounds) -> None:
    """Editors remove a file and write it anew."""
    rounds()
    text = (docs / "a.txt").read_text()
    (docs / "a.txt").unlink()
    assert rounds() == []
    (docs / "a.txt").write_text(text + "!")
    events = [*rounds(), *rounds()]
    assert [e["event"] for e in events] == ["ingested"] and stored(rig)["a.txt"] == "one!"


def test_without_being_asked_to_nothing_is_deleted(
    rig: Rig, docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = Rounds(Watch(args(docs, rig.url), {}), capsys)
    rounds()
    (docs / "a.txt").unlink()
    assert [*rounds(), *rounds(), *rounds()] == [
        {"event": "removed", "path": str(docs / "a.txt"), "doc_ids": ["a.txt"]}
    ]
    assert "a.txt" in stored(rig)


def test_a_folder_that_vanishes_deletes_nothing(rig: Rig, docs: Path, rounds: Rounds) -> None:
    rounds()
    away = docs.rename(docs.with_name("away"))
    assert rounds() == [] and "no such file or folder" in rounds.stderr
    docs.mkdir()
    for _ in range(3):
        assert rounds() == []
    docs.rmdir()
    away.rename(docs)
    assert [*rounds(), *rounds()] == [] and len(stored(rig)) == 4
    shutil.rmtree(docs / "sub")
    assert [e["doc_ids"] for e in [*rounds(), *rounds()]] == [["sub/b.md"]]


def test_a_file_that_fails_is_tried_again_when_it_changes(docs: Path, rounds: Rounds) -> None:
    (docs / "bad.pdf").write_bytes(b"%PDF-1.4 broken")
    (first,) = rounds()
    assert first["failed"] == 1 and rounds() == [] == rounds()
    (docs / "bad.pdf").write_bytes(b"%PDF-1.4 still broken")
    assert [e["failed"] for e in [*rounds(), *rounds()]] == [1]


def test_a_service_that_restarts(
    folder: Path, data: Path, docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(folder, data) as rig:
        given = args(docs, rig.url, "--delete-removed")
        rounds = Rounds(Watch(given, {}), capsys)
        rounds()
    (docs / "a.txt").write_text("while it was away")
    (docs / "sub" / "b.md").unlink()
    for _ in range(3):
        assert rounds() == []
    assert "no service answers" not in rounds.stderr, "it was said once"
    with running(folder, data) as rig:
        given.url = rig.url  # where the test's service comes back
        events = rounds()
        assert [e["event"] for e in events] == ["ingested", "deleted"]
        assert stored(rig)["a.txt"] == "while it was away" and "sub/b.md" not in stored(rig)
        assert rounds() == []


def test_a_refusal_that_does_not_pass_ends_it(rig: Rig, docs: Path) -> None:
    watch = Watch(args(docs, rig.url, "--collection", "x" * 200), {})
    with pytest.raises(errors.InvalidRequest, match="collection"):
        watch.round()


def test_what_cannot_be_watched(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([str(docs / "a.txt")], [str(docs), str(docs)], [str(docs), "--no-wait"]):
        assert main(["ingest", "--watch", *given, "--url", "http://127.0.0.1:9"]) == 2
        assert "one folder" in capsys.readouterr().err


def test_nothing_is_deleted_while_its_file_is_there(rig: Rig, docs: Path, rounds: Rounds) -> None:
    """Whatever the file holds, and whether or not it can be read at all."""
    contents = (b"", b"\xff\xfe\xff", "Größe".encode("latin-1"), b"%PDF-1.4 broken", b"\0" * 99)
    files = [docs / f"{number}.txt" for number in range(len(contents) + 3)]
    for path in files:
        path.write_text(path.name)
    rounds()
    for path, content in zip(files, contents, strict=False):
        path.write_bytes(content)
    nowhere, loop, directory = files[-3:]
    for path in (nowhere, loop, directory):
        path.unlink()
    os.symlink("nowhere", nowhere)
    os.symlink(loop.name, loop)
    directory.mkdir()
    events = [event for _ in range(4) for event in rounds()]
    assert not [event for event in events if event["event"] == "deleted"]
    assert all(stored(rig)[path.name] == path.name for path in files)


def test_a_line_that_cannot_be_read_deletes_no_other(rig: Rig, docs: Path, rounds: Rounds) -> None:
    rounds()
    for content in (rows("r1") + '{"doc_id": "r2", "te', "", rows("r1")):
        (docs / "rows.jsonl").write_text(content)
        events = [*rounds(), *rounds(), *rounds()]
    assert [e["doc_ids"] for e in events if e["event"] == "deleted"] == [["r2"]], (
        "only a clean file says that"
    )
    assert {"r1"} <= set(stored(rig))


def test_a_file_that_cannot_be_read_is_tried_until_it_can(
    rig: Rig, docs: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights come back without a change of the file; root reads whatever they are."""
    rounds()
    (docs / "a.txt").write_text("one, changed")
    opened = os.open

    def refused(path: Any, *args: Any, **more: Any) -> int:
        if path == "a.txt":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        (said,) = [event for _ in range(4) for event in rounds()]
    assert said["failed_by_reason"] == {"cannot be read: Permission denied": 1}
    assert stored(rig)["a.txt"] == "one"
    assert [event["ingested"] for event in rounds()] == [1]
    assert stored(rig)["a.txt"] == "one, changed"


def test_an_unreadable_folder_hides_its_files(rig: Rig, docs: Path, rounds: Rounds) -> None:
    rounds()
    (docs / "sub").rename(docs / "kept")
    os.symlink("kept", docs / "sub")
    events = [*rounds(), *rounds(), *rounds()]
    renamed = [(e["doc_id"], e["new_id"]) for e in events if e["event"] == "renamed"]
    assert renamed == [("sub/b.md", "kept/b.md")] and "deleted" not in {e["event"] for e in events}
    assert "kept/b.md" in stored(rig)
