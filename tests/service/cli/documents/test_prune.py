"""`kvstitch ingest --prune`: a folder and what is stored of it, in hostile cases."""

from __future__ import annotations

import json
import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.cli import main
from kvstitch.service.cli.documents.folder_sync import source_name
from kvstitch.service.cli.documents.sending import Ingest
from kvstitch.service.messages.requests import Precompute
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig

__all__ = ["folder", "rig"]


class Folder:
    """A folder, the command with it, and what is stored."""

    def __init__(self, rig: Rig, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.rig, self.path, self._capsys = rig, path, capsys
        self.write("a.md", "# A\none")
        self.write("sub/b.md", "# B\ntwo")
        self.write("sub/c.md", "# C\nthree")
        self.write("rows.jsonl", rows("r1", "r2"))

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def ingest(self, *more: str, code: int = 0) -> dict[str, Any]:
        given = ["ingest", str(self.path), "--json", "--url", self.rig.url, *more]
        assert main(given) == code
        out, self.stderr = self._capsys.readouterr()
        found: dict[str, Any] = json.loads(out or self.stderr)
        return found

    def stored(self, collection: str = "default") -> set[str]:
        listed = self.rig.http.get("/admin/documents", params={"collection": collection})
        return {one["doc_id"] for one in listed.json()["documents"]}

    def found(self, question: str) -> set[str]:
        answered = self.rig.http.post("/v1/search", json={"query": question, "top_k": 20})
        return {one["doc_id"] for one in answered.json()["results"]}


ALL = {"a.md", "sub/b.md", "sub/c.md", "r1", "r2"}


def rows(*names: str) -> str:
    return "".join(json.dumps({"doc_id": name, "text": name}) + "\n" for name in names)


@pytest.fixture
def docs(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    made = Folder(rig, tmp_path / "docs", capsys)
    assert made.ingest()["ingested"] == 5
    return made


def test_what_is_gone_is_named_and_then_removed(docs: Folder) -> None:
    (docs.path / "sub" / "b.md").unlink()
    docs.write("rows.jsonl", rows("r2"))
    assert docs.ingest()["gone"] == 2 and docs.stored() == ALL
    assert main(["ingest", str(docs.path), "--url", docs.rig.url]) == 0
    said = docs._capsys.readouterr().out
    assert "2 stored documents are no longer in this folder: --prune removes them" in said
    assert {"sub/b.md", "r1"} <= docs.found("two r1")
    assert docs.ingest("--prune")["pruned"] == 2 and docs.stored() == ALL - {"sub/b.md", "r1"}
    assert docs.found("two r1") == docs.stored()
    assert "pruned" not in docs.ingest("--prune")


def test_only_what_came_from_here_is_removed(docs: Folder, tmp_path: Path) -> None:
    """Others are another folder's, collection's, machine's or user's, or were sent by no folder."""
    other = Folder(docs.rig, tmp_path / "other", docs._capsys)
    other.write("only.md", "# Only\nthere")
    other.ingest()  # a.md is that folder's now, and the same
    docs.ingest("--collection", "c")
    docs.write("mine.md", "# Mine\nfour")
    docs.ingest("--source", "another machine")
    docs.ingest()
    docs.rig.ingest([{"doc_id": "sent", "text": "by a program"}])
    for name in ("mine.md", "sub/b.md"):
        (docs.path / name).unlink()
    assert docs.ingest("--prune")["pruned"] == 2
    assert docs.ingest("--source", "a third", "--prune").get("pruned") is None
    assert docs.stored() == ALL - {"sub/b.md"} | {"only.md", "sent"}
    assert docs.stored("c") == ALL


def test_the_source_is_of_machine_user_folder_and_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = Namespace(collection=None, source=None)
    names = [source_name(args, tmp_path), source_name(args, tmp_path / "sub")]
    names.append(source_name(Namespace(collection="c", source=None), tmp_path))
    (tmp_path / "link").symlink_to(tmp_path)
    assert source_name(args, tmp_path / "link" / ".") == names[0]
    with monkeypatch.context() as patched:
        patched.setattr("socket.gethostname", lambda: "another")
        names.append(source_name(args, tmp_path))
    monkeypatch.setattr("os.getuid", lambda: 4321)
    names.append(source_name(args, tmp_path))
    assert len(set(names)) == 5
    assert not any(str(tmp_path) in name for name in names), "no path goes to the service"


def test_a_rename_computes_nothing(docs: Folder) -> None:
    worker = docs.rig.worker
    assert worker is not None

    def computed() -> list[int]:
        calls = [call for call in worker.seen(Precompute) if isinstance(call, Precompute)]
        return [chunk.chunk_id for call in calls for chunk in call.documents]

    before = computed()
    text = docs.rig.http.get("/admin/documents/sub/b.md").json()
    (docs.path / "sub" / "b.md").rename(docs.path / "New.md")
    (docs.path / "a.md").rename(docs.path / "A.md")
    done = docs.ingest("--prune")
    assert done["renamed"] == 2 and done["unchanged"] == 5 and "pruned" not in done
    assert docs.stored() == ALL - {"sub/b.md", "a.md"} | {"New.md", "A.md"}
    assert set(computed()) == set(before), "no chunk is new"
    again = docs.rig.http.get("/admin/documents/New.md").json()
    assert (again["revision"], again["created"]) == (text["revision"], text["created"])
    assert "New.md" in docs.found("two")


def test_a_folder_that_seems_to_be_away(docs: Folder, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(docs.path, kept)
    for below in docs.path.iterdir():
        shutil.rmtree(below) if below.is_dir() else below.unlink()
    refused = docs.ingest("--prune", code=1)["error"]
    assert "is it mounted?" in refused["message"] and docs.stored() == ALL
    docs.write("other.md", "# Other\nvolume")
    refused = docs.ingest("--prune", code=1)["error"]
    assert "is it mounted?" in refused["message"] and docs.stored() == ALL, "nothing was sent"
    shutil.copytree(kept, docs.path, dirs_exist_ok=True)
    for number in range(4):
        docs.write(f"sub/{number}.md", f"# {number}\nmore")
    docs.ingest()
    (docs.path / "sub" / "0.md").unlink()
    assert docs.ingest("--prune")["pruned"] == 1
    shutil.rmtree(docs.path / "sub")
    (docs.path / "sub").mkdir()
    assert "sub is empty" in docs.ingest("--prune", code=1)["error"]["message"]
    assert docs.ingest("--prune-all")["pruned"] == 5
    shutil.rmtree(docs.path)
    assert docs.ingest("--prune", code=2)["error"]
    assert docs.stored() == {"a.md", "r1", "r2", "other.md"}


@pytest.mark.parametrize("named", ["a.md", "pattern"])
def test_only_folders_are_pruned(docs: Folder, named: str) -> None:
    path = docs.path / "a.md" if named == "a.md" else f"{docs.path}/*.md"
    assert main(["ingest", str(path), "--prune", "--json", "--url", docs.rig.url]) == 2
    assert "takes folders" in docs._capsys.readouterr().err


def test_what_cannot_be_ingested_this_time_stays(docs: Folder) -> None:
    """Hidden by rights or a link, empty, of a broken file, or not parsed: it is there."""
    docs.write("broken.pdf", "%PDF-1.7 and no more")
    docs.write("a.md", "")
    (docs.path / "sub").rename(docs.path / ".moved")
    os.symlink(docs.path / "nowhere.md", docs.path / "link.md")
    (docs.path / "sub").mkdir()
    docs.write("sub/b.md", "\0\1\2")  # it fails in the job
    docs.write("sub/d.md", "# D\nfour")
    done = docs.ingest("--prune", code=1)
    assert done["failed"] >= 1 and done["pruned"] == 1
    assert docs.stored() == ALL - {"sub/c.md"} | {"sub/d.md"}
    docs.write("rows.jsonl", "{broken\n" + rows("r3"))
    assert "which lines" in docs.ingest("--prune", code=1)["error"]["message"]
    docs.write("rows.jsonl", "")
    assert "which lines" in docs.ingest("--prune", code=1)["error"]["message"]
    assert {"r1", "r2"} <= docs.stored()


def test_a_folder_in_it_that_cannot_be_read(docs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run as root, whom no rights keep out: the walk is told that it may not."""
    scandir = os.scandir

    def denied(path: Any = ".") -> Any:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    (docs.path / "a.md").unlink()
    assert docs.ingest("--prune", code=1)["pruned"] == 1
    assert docs.stored() == ALL - {"a.md"}


def test_a_folder_that_goes_away_meanwhile(docs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there when the command began, and is empty when all is sent."""
    docs.write("new.md", "# New\nfive")
    watch = Ingest.watch

    def unmounted(ingest: Ingest, client: Any) -> None:
        watch(ingest, client)
        shutil.rmtree(docs.path)
        docs.path.mkdir()

    monkeypatch.setattr(Ingest, "watch", unmounted)
    assert "is it mounted?" in docs.ingest("--prune", code=1)["error"]["message"]
    assert docs.stored() == ALL | {"new.md"}
