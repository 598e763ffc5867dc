"""A catalog of release 0.2.0 is brought up to date with what it holds, on either database."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from kvstitch.retriever import Document
from kvstitch.retriever.analysis.analyser import REVISION
from kvstitch.retriever.catalog.tables import accompanied, companions
from kvstitch.retriever.prefixes.prefix_choice import PrefixRule
from kvstitch.retriever.scope import DEFAULT_SCOPE
from kvstitch.retriever.sql.database import Database
from tests.retriever.conftest import OpenRetriever

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)

NEW = {
    "documents": ["readers", "writers"],
    "primers": ["readers", "writers"],
    "accompanied": ["made", "few_of"],
}
# Further new columns, by the database that has them.
WORDS = {
    "sqlite": {"scopes": ["analyser", "old_words"]},
    "postgresql": {"chunk_words": ["analyser"]},
}


def columns(database: Database) -> dict[str, set[str]]:
    with database.read() as read:
        inspector = sa.inspect(read)
        return {table: {c["name"] for c in inspector.get_columns(table)} for table in NEW}


def make_old(write: sa.Connection) -> None:
    """Make the catalog one of release 0.2.0."""
    write.exec_driver_sql("UPDATE alembic_version SET version_num = 'catalog_1'")
    write.exec_driver_sql("DROP TABLE next_vectors")
    write.exec_driver_sql("DROP INDEX documents_by_readers")
    write.exec_driver_sql("DROP INDEX accompanied_few")
    for table, names in NEW.items():
        for name in names:
            write.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {name}")
    for table, names in WORDS[write.dialect.name].items():
        for name in names:
            write.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {name}")
    if write.dialect.name == "postgresql":
        return
    for (scope_id,) in write.exec_driver_sql("SELECT scope_id FROM scopes").all():
        for suffix in ("_counts", ""):
            write.exec_driver_sql(f"DROP TABLE words_{scope_id}_{REVISION}{suffix}")
        old = f"sparse_{scope_id}"
        write.exec_driver_sql(
            f"CREATE VIRTUAL TABLE {old} USING fts5(body, content = '', "
            "tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        write.exec_driver_sql(
            f"INSERT INTO {old} (rowid, body) SELECT chunk_id, title || '\n' || chunks.text "
            f"FROM chunks JOIN documents USING (document) WHERE scope_id = {scope_id}"
        )


def test_a_catalog_of_release_0_2_0(
    open_retriever: OpenRetriever, open_database: Callable[[], Database]
) -> None:
    retriever = open_retriever()
    retriever.ingest([Document(f"d{n}", f"words number{n}") for n in range(5)])
    prefixes = retriever.prefix_chunks
    chunks = [retriever.catalog.chunks_of(f"d{n}")[0] for n in range(5)]
    for chunk in chunks[:4]:
        prefixes.choose_all([(chunk, 99)], PrefixRule("primer", 3), scope=DEFAULT_SCOPE)
    chosen = prefixes.of([chunk.chunk_id for chunk in chunks[:4]], "primer")
    database = retriever.catalog.database
    wanted = columns(database)
    with database.write() as write:
        make_old(write)
        emptied = sa.text("DELETE FROM companions WHERE chunk_id = :id")
        write.execute(emptied, {"id": chunks[0].chunk_id})
        write.exec_driver_sql("UPDATE accompanied SET exact = 1")
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
    again.prefix_chunks.choose_all([(chunks[4], 99)], rule, scope=DEFAULT_SCOPE)
    again.prefix_chunks.set_exact([last])
    assert [doc_id for _, doc_id in again.prefix_chunks.open("primer", 9, count=3)] == ["d0"]
    [stored] = again.ingest([Document("new", "other words", readers="finance")])
    assert stored.status == "created"
    found = {each.doc_id: each.writers for each in again.catalog.page(9).documents}
    assert found == {**{f"d{n}": ["*"] for n in range(5)}, "new": []}


def test_what_stood_behind_anybody_s_text_is_chosen_anew(
    open_retriever: OpenRetriever, open_database: Callable[[], Database]
) -> None:
    """Before there were writers of primers."""
    retriever = open_retriever()
    owners = {"a": "", "b": "hr", "c": "hr", "d": "guests"}
    retriever.ingest(Document(n, f"words {n}", writers=owners[n]) for n in owners)
    ids = {name: retriever.catalog.chunks_of(name)[0].chunk_id for name in owners}
    with retriever.catalog.database.write() as write:
        write.exec_driver_sql("UPDATE alembic_version SET version_num = 'catalog_5'")
        write.exec_driver_sql("DROP TABLE next_vectors")
        write.exec_driver_sql("ALTER TABLE primers DROP COLUMN writers")
        for after, before in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "c")):
            write.execute(accompanied.insert(), {"chunk_id": ids[after], "kind": "primer"})
            row = {"chunk_id": ids[after], "position": 0, "companion_id": ids[before]}
            write.execute(companions.insert(), row)
    retriever.close()
    open_database().close()
    prefixes = open_retriever().prefix_chunks
    assert set(prefixes.of(list(ids.values()), "primer")) == {ids["b"], ids["c"]}
    assert {each.doc_id for each in prefixes.prefixed(list(ids.values()))} == set(owners)


def test_words_are_made_anew_while_they_are_searched(
    open_retriever: OpenRetriever, open_database: Callable[[], Database]
) -> None:
    """Those of another release's analyser: nothing is missing meanwhile, nothing comes back."""
    retriever = open_retriever()
    texts = {f"d{n}": f"harbour number{n}" for n in range(450)}
    retriever.ingest(Document(name, text) for name, text in texts.items())
    with retriever.catalog.database.write() as write:
        make_old(write)
        if write.dialect.name == "postgresql":  # as its FTS5 in memory had folded it
            write.exec_driver_sql("UPDATE postings SET word = 'old' || word WHERE word = 'harbour'")
    retriever.close()
    open_database().close()

    def found(query: str) -> set[str]:
        return {hit.chunk.doc_id for hit in retriever.search(query, 500, mode="sparse")}

    retriever = open_retriever()
    catalog = retriever.catalog
    assert retriever.indexes_overdue()
    assert found("number17") == {"d17"}
    retriever.ingest([Document("new", "harbour Maßnahme"), Document("d3", "replaced")])
    retriever.delete(["d17"])
    assert found("number17") == set() and found("number18") == {"d18"} and found("number3") == set()
    assert found("massnahme") == {"new"}

    steps = iter([False, True])
    catalog.renew_words(lambda: next(steps))
    assert retriever.indexes_overdue(), "it was stopped after the first chunks"
    assert found("number18") == {"d18"} and found("number444") == {"d444"}
    retriever.rebuild_indexes()
    assert not retriever.indexes_overdue()
    assert found("harbour") == {*texts, "new"} - {"d3", "d17"}
    with catalog.database.read() as read:
        names = sa.inspect(read).get_table_names()
    assert not [name for name in names if name.startswith("sparse_")]
