"""A catalog whose texts, vectors and words are sealed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encryption.keyring import DataKey, Keyring
from retriever.analysis.analyser import analyse_query
from retriever.catalog.catalog import Catalog
from retriever.catalog.tables import catalog_database
from retriever.documents import DocFilter, Document, Mark, document_revision
from retriever.embedders import space_of
from retriever.errors import TextLocked
from retriever.filters import parse_filter
from retriever.retriever import Retriever
from retriever.scope import Scope
from retriever.splitting.chunking import ChunkSettings
from retriever.sql.database import Database
from tests.fakes.models import HashingEmbedder, WordCounter

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)
EMBEDDER = HashingEmbedder(8)
SPACE = space_of(EMBEDDER)
SCOPE = Scope("acme", "news")
TEXTS = {
    "fox": "The quick zebrafinch jumps over the lazy dog. It never sleeps before midnight.",
    "law": "Section 12 of the Act names the zebrafinch, and the §12a-7 exception of 2024.",
    "漢": "漢字検索は難しい。字を探す人がいる。",
    "thai": "ข้าวเช้าอร่อยมาก และ zebrafinch ก็อยู่ที่นี่",
}
QUERIES = [
    "zebrafinch",
    "lazy dog",
    '"quick zebrafinch"',
    "字",
    "漢字検索",
    "ข้าว",
    "12a-7",
    "nothing",
]
SECRETS = ["zebrafinch", "Zebrafinch", "midnight", "漢字検索", "secretlabel", "Quarterly", "ข้าวเช้า"]


def new_ring(*owners: str) -> Keyring:
    keys = [
        DataKey(os.urandom(16), owner, os.urandom(32), purpose)
        for owner in owners or ("acme", "other")
        for purpose in ("data", "words")
    ]  # fmt: skip
    return Keyring(keys)


def documents() -> list[Document]:
    return [
        Document(
            name, text, f"Quarterly {name}", {"kind": "secretlabel", "year": 2000 + len(name)},
            (Mark(0, "page", "secretlabel 1"), Mark(0, "heading", f"secretlabel {name}")),
        )
        for name, text in TEXTS.items()
    ]  # fmt: skip


def fill(catalog: Catalog, scope: Scope = SCOPE) -> None:
    for document in documents():
        spans = ChunkSettings(WordCounter(), 4).split(document.text)
        vectors = EMBEDDER.embed([document.text[s.start : s.end] for s in spans])
        revision = document_revision(document, "chunking")
        catalog.upsert(document, revision, spans, vectors, SPACE, scope=scope)


@pytest.fixture
def keys() -> Keyring:
    return new_ring()


@pytest.fixture
def database(open_database: Callable[[], Database], keys: Keyring) -> Database:
    made = open_database()
    made.keys = keys
    return made


@pytest.fixture
def catalog(database: Database) -> Iterator[Catalog]:
    catalog = Catalog(database)
    catalog.start()
    fill(catalog)
    yield catalog
    catalog.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "plain.db")
    catalog.start()
    fill(catalog)
    yield catalog
    catalog.close()


def test_all_of_a_document_comes_back(catalog: Catalog, plain: Catalog) -> None:
    for document in documents():
        stored = catalog.get(document.doc_id, scope=SCOPE)
        assert stored is not None and stored.document == document
        of_plain = plain.chunks_of(document.doc_id, scope=SCOPE)
        of_sealed = catalog.chunks_of(document.doc_id, scope=SCOPE)
        said = [(c.text, c.title, c.page, c.heading) for c in of_sealed]
        assert said == [(c.text, c.title, c.page, c.heading) for c in of_plain]
        assert said[0][2:] == ("secretlabel 1", f"secretlabel {document.doc_id}")
        assert catalog.marks_at(document.doc_id, 3, scope=SCOPE).page == "secretlabel 1"
        ids = [chunk.chunk_id for chunk in of_sealed]
        assert catalog.chunks(ids) == of_sealed
    names = [document.doc_id for document in documents()]
    assert catalog.metadata_of(names, scope=SCOPE) == plain.metadata_of(names, scope=SCOPE)
    shown = catalog.page(2, scope=SCOPE)
    assert [i.title for i in shown.documents] == [
        i.title for i in plain.page(2, scope=SCOPE).documents
    ]


def test_vectors_come_back(catalog: Catalog, plain: Catalog) -> None:
    def rows(of: Catalog) -> list[Any]:
        return [vectors for _, _, vectors in of.vectors(SPACE)]

    for a, b in zip(rows(catalog), rows(plain), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("query", QUERIES)
def test_words_are_found_and_scored_as_in_the_clear(
    catalog: Catalog, plain: Catalog, query: str
) -> None:
    hits = [each.search(analyse_query(query), 10, scope=SCOPE) for each in (catalog, plain)]
    first = [sorted(each.chunks(range(1, 999)), key=lambda c: c.chunk_id)[0].chunk_id
             for each in (catalog, plain)]  # fmt: skip
    ranked = [[(i - start, round(score, 6)) for i, score in h.ranked]
              for h, start in zip(hits, first, strict=True)]  # fmt: skip
    assert sorted(ranked[0]) == sorted(ranked[1]) and bool(ranked[0]) is (query != "nothing")
    exact = [[{i - start for i in each} for each in h.exact]
             for h, start in zip(hits, first, strict=True)]  # fmt: skip
    assert exact[0] == exact[1]


@pytest.mark.parametrize(
    "wanted",
    [
        DocFilter(where=parse_filter({"year": {"gt": 2003}})),
        DocFilter(where=parse_filter({"kind": "secretlabel", "not": {"year": 2003}})),
        DocFilter(named="quarterly L"),
        DocFilter(("fox", "law"), named="FOX"),
        DocFilter(("fox",)),
    ],
)
def test_filters_find_the_same(catalog: Catalog, plain: Catalog, wanted: DocFilter) -> None:
    def found(of: Catalog) -> tuple[list[str], list[str]]:
        ids = of.chunk_ids(wanted, scope=SCOPE)
        page = of.page(doc_filter=wanted, scope=SCOPE).documents
        return sorted(c.text for c in of.chunks(ids)), [each.doc_id for each in page]

    assert found(catalog) == found(plain) != ([], [])


def everything_in(database: Database) -> str:
    """All values of all tables, as the database shows them."""
    with database.read() as read:
        if database.shared:
            schema = "SELECT table_name FROM information_schema.tables WHERE table_schema = "
            names = read.exec_driver_sql(schema + "'kvstitch_catalog'").scalars().all()
        else:
            names = read.exec_driver_sql(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'words%'"
            ).scalars().all()  # fmt: skip
        rows = [read.exec_driver_sql(f"SELECT * FROM {name}").all() for name in names]
    return repr(rows)


def test_nothing_in_the_database_is_readable(
    catalog: Catalog, database: Database, plain: Catalog, tmp_path: Path
) -> None:
    held = everything_in(database)
    assert "fox" in held and not [each for each in SECRETS if each in held]
    vector = EMBEDDER.embed([next(iter(TEXTS.values()))])[0].tobytes()
    clear = everything_in(plain.database)
    assert "zebrafinch" in clear and "secretlabel" in clear
    if not database.shared:  # the bytes of its files, words of FTS5 and the log among them
        raw = b"".join(p.read_bytes() for p in tmp_path.glob("*") if "plain" not in p.name)
        assert not [each for each in SECRETS if each.encode() in raw]
        assert vector not in raw
        in_plain = b"".join(p.read_bytes() for p in tmp_path.glob("plain*"))
        assert b"zebrafinch" in in_plain and b"midnight" in in_plain


def test_a_replaced_or_deleted_document_leaves_no_words(catalog: Catalog) -> None:
    catalog.delete(["fox"], scope=SCOPE)
    hits = catalog.search(analyse_query("zebrafinch"), 10, scope=SCOPE)
    found = {c.doc_id for c in catalog.chunks([i for i, _ in hits.ranked])}
    assert found == {"law", "thai"}


def test_swapped_texts_do_not_open(catalog: Catalog, database: Database) -> None:
    with database.write() as write:
        text = write.exec_driver_sql("SELECT text FROM documents WHERE doc_id = 'law'").scalar_one()
        marked = "%s" if database.shared else "?"
        change = f"UPDATE documents SET text = {marked} WHERE doc_id = 'fox'"
        write.exec_driver_sql(change, (text,))
    with pytest.raises(TextLocked, match="stand elsewhere"):
        catalog.get("fox", scope=SCOPE)
    assert catalog.get("law", scope=SCOPE) is not None


def test_without_the_tenants_key_nothing_opens(catalog: Catalog, keys: Keyring) -> None:
    keys.replace([key for key in keys.all() if key.owner != "acme"])
    with pytest.raises(TextLocked, match="not here"):
        catalog.get("fox", scope=SCOPE)
    with pytest.raises(TextLocked):
        catalog.chunks_of("fox", scope=SCOPE)
    with pytest.raises(TextLocked):
        list(catalog.vectors(SPACE))


def test_after_a_rotation_both_are_read(catalog: Catalog, keys: Keyring) -> None:
    new = DataKey(os.urandom(16), "acme", os.urandom(32))
    old = keys.current("acme")
    keys.replace([*keys.all(), new])
    document = Document("new", "A zebrafinch again.", "T")
    spans = ChunkSettings(WordCounter(), 4).split(document.text)
    catalog.upsert(document, "r", spans, EMBEDDER.embed([document.text]), SPACE, scope=SCOPE)
    assert {c.doc_id for c in catalog.chunks(
        [i for i, _ in catalog.search(analyse_query("zebrafinch"), 9, scope=SCOPE).ranked]
    )} == {"fox", "law", "thai", "new"}  # fmt: skip
    keys.replace([key for key in keys.all() if key.id != old.id])
    assert catalog.get("new", scope=SCOPE) is not None
    with pytest.raises(TextLocked):
        catalog.get("fox", scope=SCOPE)


def test_a_folder_in_the_clear_is_read_and_its_words_are_made_anew(
    open_database: Callable[[], Database], keys: Keyring
) -> None:
    first = Catalog(open_database())
    first.start()
    fill(first)
    first.close()
    later = open_database()
    later.keys = keys
    catalog = Catalog(later)
    catalog.start()
    try:
        stored = catalog.get("fox", scope=SCOPE)
        assert stored is not None and stored.document == documents()[0]
        assert catalog.words_outdated()
        catalog.renew_words()
        assert not catalog.words_outdated()
        hits = catalog.search(analyse_query("zebrafinch"), 10, scope=SCOPE)
        assert {c.doc_id for c in catalog.chunks([i for i, _ in hits.ranked])} == {
            "fox", "law", "thai",
        }  # fmt: skip
    finally:
        catalog.close()


def test_a_saved_index_is_sealed(tmp_path: Path) -> None:
    keys = new_ring("")
    made = Retriever.in_folder(tmp_path, EMBEDDER, ChunkSettings(WordCounter(), 16), keys=keys)
    made.start()
    made.ingest(documents())
    made.save()
    made.close()
    raw = b"".join(path.read_bytes() for path in (tmp_path / "index").glob("index-*"))
    vectors = EMBEDDER.embed([document.text for document in documents()])
    assert len(raw) > 100 and not [v for v in vectors if v.tobytes()[:16] in raw]
    again = Retriever.in_folder(tmp_path, EMBEDDER, ChunkSettings(WordCounter(), 16), keys=keys)
    assert again.start().rebuilt is None
    assert len(again.index) == len(made.index) > 0
    again.close()
    other = Retriever.in_folder(
        tmp_path, EMBEDDER, ChunkSettings(WordCounter(), 16), keys=new_ring("")
    )
    with pytest.raises(TextLocked):
        other.start()
    other.close()


def test_sqlite_itself_sees_hashes_for_words(tmp_path: Path) -> None:
    catalog = Catalog(catalog_database(tmp_path / "c.db", keys=new_ring()))
    catalog.start()
    fill(catalog)
    catalog.close()
    with sqlite3.connect(tmp_path / "c.db") as raw:
        tables = "SELECT name FROM sqlite_master WHERE name LIKE 'words_%_counts'"
        (name,) = raw.execute(tables).fetchone()
        words = [word for (word,) in raw.execute(f"SELECT term FROM {name}")]
    raw.close()
    assert len(words) > 20 and all(word[0] in "ws" and word.isalnum() for word in words)
