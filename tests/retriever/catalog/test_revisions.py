"""A catalog of release 0.2.0 is brought up to date with what it holds, on either database."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from retriever import Document, PrefixRule
from retriever.scope import DEFAULT_SCOPE
from retriever.sql.database import Database
from tests.retriever.conftest import OpenRetriever

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)

NEW = {"documents": ["readers"], "primers": ["readers"], "accompanied": ["made", "few_of"]}


def columns(database: Database) -> dict[str, set[str]]:
    with database.read() as read:
        inspector = sa.inspect(read)
        return {table: {c["name"] for c in inspector.get_columns(table)} for table in NEW}


def test_a_catalog_of_the_first_revision(
    open_retriever: OpenRetriever, open_database: Callable[[], Database]
) -> None:
    retriever = open_retriever()
    retriever.ingest([Document(f"d{n}", f"words number{n}") for n in range(5)])
    prefixes = retriever.prefix_chunks
    chunks = [retriever.catalog.chunks_of(f"d{n}")[0] for n in range(5)]
    for chunk in chunks[:4]:
        prefixes.choose(chunk, PrefixRule("primer", 3), scope=DEFAULT_SCOPE, max_tokens=99)
    chosen = prefixes.of([chunk.chunk_id for chunk in chunks[:4]], "primer")
    database = retriever.catalog.database
    wanted = columns(database)
    with database.write() as write:
        write.exec_driver_sql("DROP INDEX documents_by_readers")
        write.exec_driver_sql("DROP INDEX accompanied_few")
        for table, names in NEW.items():
            for name in names:
                write.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {name}")
        emptied = sa.text("DELETE FROM companions WHERE chunk_id = :id")
        write.execute(emptied, {"id": chunks[0].chunk_id})
        write.exec_driver_sql("UPDATE accompanied SET exact = 1")
        write.exec_driver_sql("UPDATE alembic_version SET version_num = 'catalog_1'")
    retriever.close()
    open_database().close()

    again = open_retriever()
    assert columns(again.catalog.database) == wanted
    assert [p.chunk.doc_id for p in again.search("words number3", 1)] == ["d3"]
    now = again.prefix_chunks.of([chunk.chunk_id for chunk in chunks], "primer", made=True)
    assert now == {**chosen, chunks[0].chunk_id: []}, "what was chosen is stored"
    assert {doc_id for _, doc_id in again.prefix_chunks.open("primer", 9, count=3)} == {"d4"}
    last = chunks[4].chunk_id
    rule = PrefixRule("primer", 3)
    again.prefix_chunks.choose(chunks[4], rule, scope=DEFAULT_SCOPE, max_tokens=99)
    again.prefix_chunks.set_exact([last])
    assert [doc_id for _, doc_id in again.prefix_chunks.open("primer", 9, count=3)] == ["d0"]
    [stored] = again.ingest([Document("new", "other words", readers="finance")])
    assert stored.status == "created"
