"""Restarts: with a saved index, with a stale or damaged one, and after a kill."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvstitch.retriever import ChunkSettings, DocFilter, Document, Retriever
from kvstitch.retriever.index.vector_index import VectorIndex
from tests.fakes.models import HashingEmbedder, WordCounter

DOCUMENTS = [Document(f"d{n}", f"text number {n} of several. " * 10) for n in range(10)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a corpus and its saved index."""
    retriever = at(tmp_path)
    retriever.start()
    retriever.ingest(DOCUMENTS)
    retriever.save()
    retriever.close()
    return tmp_path


def at(folder: Path) -> Retriever:
    return Retriever.in_folder(folder, HashingEmbedder(), ChunkSettings(WordCounter(), 16))


def assert_whole(folder: Path) -> str | None:
    """Index and catalog agree, and every document is whole. Returns why the index was rebuilt."""
    retriever = at(folder)
    report = retriever.start()
    ids = set(retriever.catalog.chunk_ids(DocFilter()))
    assert isinstance(retriever.index, VectorIndex) and retriever.index.ids == ids
    assert report.vectors == len(ids) == retriever.catalog.counts().chunks
    assert sum(
        len(i) for _, i, _ in retriever.catalog.vectors(retriever.catalog.spaces()[0])
    ) == len(ids)
    cursor = None
    while True:
        page = retriever.catalog.page(100, cursor)
        for info in page.documents:
            stored = retriever.catalog.get(info.doc_id)
            chunks = retriever.catalog.chunks_of(info.doc_id)
            assert stored is not None and chunks
            assert "".join(chunk.text for chunk in chunks) == stored.text
            assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
        if (cursor := page.next_cursor) is None:
            break
    hits = retriever.search("text", 10_000)
    assert {hit.chunk.chunk_id for hit in hits} == ids
    retriever.close()
    return report.rebuilt


def test_saved_index_is_used(saved: Path) -> None:
    assert assert_whole(saved) is None


def test_unsaved_changes_are_not_lost(saved: Path) -> None:
    retriever = at(saved)
    retriever.start()
    retriever.delete(["d1"])
    retriever.ingest([Document("new", "another text")])
    retriever.close()
    assert "another state" in (assert_whole(saved) or "")


def test_missing_index_is_rebuilt(saved: Path) -> None:
    shutil.rmtree(saved / "index")
    assert "no index" in (assert_whole(saved) or "")


@pytest.mark.parametrize("name", ["index-*.faiss", "manifest.json"])
def test_damaged_files_are_rebuilt_with_a_warning(
    saved: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = (saved / "index").glob(name)
    path.write_bytes(path.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING):
        assert assert_whole(saved) is not None
    assert "rebuilding the index" in caplog.text


def test_index_of_a_backups_other_future_is_not_used(saved: Path) -> None:
    """The restored catalog reaches the saved index's generation with other documents."""
    backup = (saved / "catalog.db").read_bytes()
    for text in ("the one text", "the other text"):
        for path in saved.glob("catalog.db*"):
            path.unlink()
        (saved / "catalog.db").write_bytes(backup)
        retriever = at(saved)
        retriever.start()
        retriever.ingest([Document("next", text)])
        if text == "the one text":
            retriever.save()
        retriever.close()
    assert "another state" in (assert_whole(saved) or "")


def test_index_saved_after_a_rebuild_is_used(saved: Path) -> None:
    shutil.rmtree(saved / "index")
    retriever = at(saved)
    retriever.start()
    retriever.save()
    retriever.close()
    assert assert_whole(saved) is None


def test_change_by_another_process_is_noticed_at_the_next_change(saved: Path) -> None:
    first, second = at(saved), at(saved)
    first.start()
    second.start()
    second.ingest([Document("theirs", "a foreign text")])
    first.ingest([Document("ours", "a text of our own")])
    assert first.search("a foreign text", 1)[0].chunk.doc_id == "theirs"
    first.save()
    first.close()
    second.close()
    assert assert_whole(saved) is None


ENDLESS_INGEST = """
import sys
from pathlib import Path
from kvstitch.retriever import *
from tests.fakes.models import HashingEmbedder, WordCounter

folder, turn = Path(sys.argv[1]), sys.argv[2]
retriever = Retriever.in_folder(folder, HashingEmbedder(), ChunkSettings(WordCounter(), 16))
retriever.start()
print("ready", flush=True)
number = 0
while True:
    # Documents of some hundred chunks keep transactions open long enough to be hit; every third
    # one is an update, every seventh goes again, and the index is saved in between.
    name = f"d{number % 30}"
    retriever.ingest([Document(name, f"text {turn} {number} " * 2000)])
    if number % 3 == 0:
        retriever.ingest([Document(name, f"newer text {turn} {number} " * 2000)])
    if number % 7 == 0:
        retriever.delete([f"d{number % 11}"])
    if number % 2 == 0:
        retriever.save()
    number += 1
"""


def test_kill_in_the_middle_of_ingest_leaves_whole_documents(saved: Path) -> None:
    rng = random.Random(0)
    for turn in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS_INGEST, str(saved), str(turn)],
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0.05, 0.6))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert_whole(saved)
