"""An actor with a worker process that only pretends to compute, on a real PostgreSQL; no Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet.hashing_endpoint import hashing_endpoint
from kvstitch.retriever import ChunkSettings, EndpointEmbedder, Retriever, Scope
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.service.settings import Settings
from kvstitch_ray.bulk.actor import RangeActor
from kvstitch_ray.bulk.corpus import storing_retriever
from kvstitch_ray.bulk.range_table import RangeTable
from kvstitch_ray.bulk.ranges import cut
from kvstitch_ray.bulk.records import Run
from kvstitch_ray.bulk.sources import source
from tests.fakes.models import WordCounter
from tests.service.gateway.model_folders import byte_tokenizer, make_folder

FAKE = (sys.executable, "-m", "tests.fakes.worker")
Ingest = Callable[..., tuple[list[dict[str, Any]], RangeTable]]


@pytest.fixture
def endpoint() -> Iterator[str]:
    with hashing_endpoint() as url:
        yield url


@pytest.fixture
def ingest(tmp_path: Path, postgresql_url: str, endpoint: str) -> Iterator[Ingest]:
    """Ingests rows by one actor; what it says of its ranges, and the table."""
    run = Run("run", str(tmp_path / "rows.jsonl"), "", "default")
    table = RangeTable(postgresql_url)
    table.start()
    folder = make_folder(tmp_path / "model")

    def with_rows(
        rows: list[Any], *, command: tuple[str, ...] = FAKE, **settings: Any
    ) -> tuple[list[dict[str, Any]], RangeTable]:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        text, path = "\n".join(lines), Path(run.input)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        table.begin(run)
        cut(source(run.input), table, run.run_id, 100)
        given = {"database": postgresql_url, "redis_url": "redis://127.0.0.1:1/0"}
        made = Settings(
            model=str(folder), data_dir=tmp_path, embedder_url=endpoint, embedder="hashing",
            embedder_revision="1", **{**given, **settings},
        )  # fmt: skip
        actor = RangeActor(made.model_dump(mode="json"), run, worker_command=command)
        try:
            answers = [actor({"number": [n]}) for n in table.free(run.run_id)]
        finally:
            actor.close()
        return [{name: each[name][0] for name in each} for each in answers], table

    yield with_rows
    table.close()


def row(number: int, text: str = "") -> dict[str, Any]:
    return {"doc_id": f"d{number}", "title": f"T{number}", "text": text or f"Text number {number}."}


def test_documents_are_in_the_catalog_and_each_text_is_stored_once(
    ingest: Ingest, postgresql_url: str, endpoint: str, tmp_path: Path
) -> None:
    same = {"text": "The very same words.", "title": "same"}
    rows = [row(0), {"doc_id": "a", **same}, "{", {"doc_id": "b", **same}, row(1), row(0, "Newer.")]
    (said,), table = ingest(rows)
    assert (said["outcome"], said["reason"], said["chunks"]) == ("done", "", 6 - 1)
    progress = table.progress(Run("run", "", "", ""))
    assert (progress.done, progress.failed, progress.chunks) == (5, 1, 5)
    assert (progress.stored, progress.present) == (4, 1)
    assert "line 3" in table.errors("run")[0]["message"]
    shared = catalog_database(postgresql_url)
    with_index = Retriever.in_folder(
        tmp_path / "gateway",
        EndpointEmbedder(endpoint, "hashing", revision="1"),
        ChunkSettings(WordCounter(), 64),
        database=shared,
    )
    with_index.start()
    (found,) = with_index.search("Newer.", 1, scope=Scope("", "default"))
    assert found.chunk.doc_id == "d0"
    assert with_index.catalog.counts().documents == 4
    with_index.close()
    shared.close()


def test_prefixes_are_chosen_among_the_whole_range(
    ingest: Ingest, postgresql_url: str, endpoint: str
) -> None:
    """Nothing is left to a gateway; of a document that comes twice the last text counts."""
    rows = [row(number) for number in range(40)]
    again = [*rows, row(0, "Newer."), row(40)]
    (said,), table = ingest(again, prefix_mode="primer", companions=3)
    assert (said["outcome"], said["reason"]) == ("done", "")
    progress = table.progress(Run("run", "", "", ""))
    assert (progress.done, progress.failed, progress.chunks) == (42, 0, 42)
    assert progress.stored == 42, "though each chunk is stored twice"
    shared = catalog_database(postgresql_url)
    embedder = EndpointEmbedder(endpoint, "hashing", revision="1")
    retriever = storing_retriever(shared, embedder, ChunkSettings(WordCounter(), 64))
    retriever.start()
    prefixes, scope = retriever.prefix_chunks, Scope("", "default")
    ids = [retriever.catalog.chunks_of(f"d{n}", scope=scope)[0].chunk_id for n in range(1, 41)]
    found = prefixes.of(ids, "primer", made=True)
    assert len(found) == 40
    counts = sorted(map(len, found.values()))
    assert counts[9:] == [3] * 31 and set(counts) <= {2, 3}, "a primer's own may have two primers"
    assert all(len(prefix) == 3 for each in found.values() for prefix in each)
    open_ = {doc_id for _, doc_id in prefixes.open("primer", 99, count=9)}
    assert open_ <= {"d0"}, "what stood behind its first text may be open until that is purged"
    retriever.close()
    shared.close()


def test_again_nothing_is_stored(ingest: Ingest) -> None:
    rows = [row(number) for number in range(3)]
    ingest(rows)
    answers, table = ingest(rows)
    assert answers == [] and table.progress(Run("run", "", "", "")).ended
    table.again("run")
    (said,), _ = ingest(rows)
    assert said["outcome"] == "done"


def test_a_document_that_kills_the_worker_fails_alone(ingest: Ingest) -> None:
    """The byte of `@` kills the worker, whenever it is computed."""
    token = byte_tokenizer().token_to_id("@")
    command = (*FAKE, "--crash-token", str(token))
    (said,), table = ingest([row(0), row(1, "what @ kills"), row(2)], command=command)
    assert said["outcome"] == "done"
    progress = table.progress(Run("run", "", "", ""))
    assert (progress.done, progress.failed) == (2, 1)
    (error,) = table.errors("run")
    assert error["doc_id"] == "d1" and "died 3 times" in error["message"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"redis_url": ""}, "--redis or --s3"),
        ({"prefix_mode": "neighbours"}, "no index"),
    ],
)
def test_settings_that_gateways_could_not_use(
    ingest: Ingest, settings: dict[str, Any], message: str
) -> None:
    (said,), table = ingest([row(0)], **settings)
    assert said["outcome"] == "refused" and message in said["reason"]
    assert table.progress(Run("run", "", "", "")).ranges == {"open": 1}


def test_a_worker_that_refuses_the_model(ingest: Ingest) -> None:
    (said,), _ = ingest([row(0)], command=(*FAKE, "--refuse", "no such family"))
    assert (said["outcome"], said["reason"]) == ("refused", "no such family")
