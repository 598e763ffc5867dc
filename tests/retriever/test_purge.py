"""Deleted or replaced text is in no file any more: the tests search the raw bytes."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from kvstitch.retriever import Document, Scope
from tests.fakes.models import HashingEmbedder
from tests.retriever.conftest import OpenRetriever

# FTS5 stores only the part of a word that differs from its neighbour, so search for that part.
SECRET = "Xylophonequartz wq7vanadium"
TRACES = (b"ylophonequartz", b"q7vanadium")


def filler(number: int) -> Document:
    text = " ".join(f"xylo{number}word{n} wq{n}" for n in range(60))
    return Document(f"filler-{number}", text, metadata={"n": number})


def files_with(folder: Path, trace: bytes) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name for path in files if trace.lower() in path.read_bytes().lower()}


def vector_bytes(text: str) -> bytes:
    return np.ascontiguousarray(HashingEmbedder().embed([text])[0][0], dtype="<f4").tobytes()


def assert_gone(folder: Path) -> None:
    for trace in (*TRACES, vector_bytes(SECRET)):
        assert files_with(folder, trace) == set()


def test_nothing_is_left_of_deleted_documents(
    open_retriever: OpenRetriever, tmp_path: Path
) -> None:
    retriever = open_retriever(max_tokens=64)
    retriever.ingest(filler(n) for n in range(40))
    retriever.ingest([Document("secret", SECRET, SECRET.upper(), {"k": SECRET})])
    retriever.ingest([Document("plain", SECRET)])
    retriever.ingest(filler(n) for n in range(40, 80))
    retriever.purge()
    for trace in TRACES:
        assert files_with(tmp_path, trace) == {"catalog.db"}
    assert len(files_with(tmp_path, vector_bytes(SECRET))) == 2  # catalog and index

    retriever.delete(["secret", "plain"])
    assert files_with(tmp_path, TRACES[0])  # in the log, in segments: delete alone is not enough
    retriever.purge()
    assert_gone(tmp_path)
    assert len(retriever.search("xylo5word7", 99, mode="sparse")) == 1
    assert retriever.catalog.counts().documents == 80


def test_nothing_is_left_of_replaced_revisions(
    open_retriever: OpenRetriever, tmp_path: Path
) -> None:
    retriever = open_retriever()
    retriever.ingest([filler(1), Document("a", SECRET, "title", {"k": SECRET})])
    retriever.purge()
    retriever.ingest([Document("a", "harmless", "title")])
    retriever.purge()
    assert_gone(tmp_path)
    assert retriever.search("harmless", 1, mode="hybrid")[0].chunk.doc_id == "a"


def test_the_last_document_takes_the_names_of_its_scope_along(
    open_retriever: OpenRetriever, tmp_path: Path
) -> None:
    retriever = open_retriever()
    scope = Scope("tenant-qqq", "collection-qqq")
    retriever.ingest([filler(1)])
    retriever.ingest([Document("a", SECRET)], scope=scope)
    retriever.purge()
    assert files_with(tmp_path, b"-qqq")
    retriever.delete(["a"], scope=scope)
    retriever.purge()
    assert_gone(tmp_path)
    assert files_with(tmp_path, b"-qqq") == set()


def test_a_process_that_died_before_its_purge_is_made_up_for(
    open_retriever: OpenRetriever, tmp_path: Path
) -> None:
    retriever = open_retriever()
    retriever.ingest([filler(1), Document("a", SECRET)])
    retriever.save()
    retriever.delete(["a"])
    retriever.close()
    open_retriever().save()
    assert_gone(tmp_path)


def test_purge_changes_no_result(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(filler(n) for n in range(20))
    retriever.delete(["filler-3"])
    before = retriever.search("xylo5word7 wq9", 50, mode="hybrid")
    retriever.purge()
    retriever.purge()
    assert retriever.search("xylo5word7 wq9", 50, mode="hybrid") == before


def test_purge_comes_through_beside_endless_searches(
    open_retriever: OpenRetriever, tmp_path: Path
) -> None:
    """The log can be emptied only between reads; reads that come later must not hold it up."""
    retriever = open_retriever()
    retriever.ingest(filler(n) for n in range(20))
    stop = threading.Event()
    failed: list[Exception] = []

    def search() -> None:
        while not stop.is_set():
            try:
                assert retriever.search("xylo5word7 wq9", 5, mode="hybrid")
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):
            retriever.ingest([Document("a", f"{SECRET} {number}")])
            retriever.delete(["a"])
            retriever.purge()
            assert files_with(tmp_path, TRACES[0]) == set()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_what_was_added_bit_by_bit_is_merged(open_retriever: OpenRetriever, tmp_path: Path) -> None:
    retriever = open_retriever(max_tokens=64)
    for number in range(3):
        retriever.ingest([filler(number)])
    with retriever.catalog.database.read() as read:
        tables = "SELECT name FROM sqlite_master WHERE name LIKE 'words_%_idx'"
        segments = f"SELECT count(DISTINCT segid) FROM {read.exec_driver_sql(tables).scalar_one()}"
        assert read.exec_driver_sql(segments).scalar_one() == 3
    found = retriever.search("xylo1word7 wq2", 99, mode="sparse")
    retriever.purge()
    with retriever.catalog.database.read() as read:
        assert read.exec_driver_sql(segments).scalar_one() == 1
        assert read.exec_driver_sql("SELECT stale FROM scopes").scalar_one() == 0
    assert retriever.search("xylo1word7 wq2", 99, mode="sparse") == found
