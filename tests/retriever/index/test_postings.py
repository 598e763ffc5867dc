"""PostgreSQL's keyword search gives the hits and scores of SQLite's FTS5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstitch.retriever import ChunkSettings, DocFilter, Document, Retriever, parse_filter
from kvstitch.retriever.catalog.tables import catalog_database
from tests.fakes.models import HashingEmbedder, WordCounter
from tests.retriever.conftest import Question

TEXTS = (
    "हिन्दी में खोज और लेखन। हिन्दी साहित्य।",
    "漢字を検索する。検索は漢字で。",
    "한국어 문서와 영어 문서",
    "naïve cafés, Café, CAFE; running runners run",
    "C++ fails with ERR_CONN-1042, not 1042.",
    "สวัสดี ภาษาไทย",
)
QUERIES = (
    "हिन्दी साहित्य", "漢字検索", "字", "문서", "cafe run", "running", "err_conn 1042 c++",
    "ภาษาไทย", "runs running runner", "the of in", "nothing-of-the-sort", "!?",
)  # fmt: skip


@pytest.fixture(scope="module")
def both(
    postgresql_server: object, tmp_path_factory: pytest.TempPathFactory, questions: list[Question]
) -> Iterator[tuple[Retriever, Retriever]]:
    shared = catalog_database(postgresql_server.database())  # type: ignore[attr-defined]
    made = [
        Retriever.in_folder(
            Path(tmp_path_factory.mktemp("words")), HashingEmbedder(),
            ChunkSettings(WordCounter(), 64), database=database,
        )
        for database in (None, shared)
    ]  # fmt: skip
    passages = [*TEXTS, *(text for q in questions[:8] for text in q.passages)]
    for retriever in made:
        retriever.start()
        retriever.ingest(
            Document(f"d{n}", text, metadata={"even": n % 2 == 0})
            for n, text in enumerate(passages)
        )
        retriever.delete(["d20", "d21"])
        retriever.ingest([Document("d22", "replaced by other words", "Title")])
    yield made[0], made[1]
    for retriever in made:
        retriever.close()
    shared.close()


def test_hits_and_scores_are_the_same(
    both: tuple[Retriever, Retriever], questions: list[Question]
) -> None:
    found = 0
    for query in (*QUERIES, *(question.text for question in questions[:20])):
        for condition in ({}, {"even": True}):
            doc_filter = DocFilter(where=parse_filter(condition))
            sqlite, postgresql = (r.search(query, 9, doc_filter, mode="sparse") for r in both)
            assert [h.chunk.doc_id for h in sqlite] == [h.chunk.doc_id for h in postgresql], query
            assert [h.score for h in postgresql] == pytest.approx([h.score for h in sqlite])
            found += len(sqlite)
    assert found > 150


def test_both_hold_the_same_exactly(both: tuple[Retriever, Retriever]) -> None:
    for query in ("ERR_CONN-1042", "한국어 문서와", "running runners", '"replaced by other words"'):
        sqlite, postgresql = (r.search(query, 9, mode="hybrid") for r in both)
        assert [(h.chunk.doc_id, h.exact) for h in sqlite] == [
            (h.chunk.doc_id, h.exact) for h in postgresql
        ]
        assert sqlite[0].exact and not all(h.exact for h in sqlite), query
