"""Search by words, and both rankings together."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.retriever import DocFilter, Document, Retriever, Scope, parse_filter
from kvstitch.retriever.analysis.analyser import MAX_QUERY_WORDS, analyse_query
from kvstitch.retriever.errors import InvalidQuery
from kvstitch.retriever.index.bm25 import match_expression
from kvstitch.retriever.index.full_text import searched_terms, uncounted
from kvstitch.retriever.search import combine
from tests.retriever.conftest import OpenRetriever

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)

TEXTS = {
    "fox": "The red fox hunts mice at night.",
    "owl": "The owl hunts mice at night as well.",
    "whale": "The whale sings in the sea.",
    "cafe": "A Café in Zürich serves ＣＯＦＦＥＥ.",
    "kanji": "漢字を検索する。",
    "hangul": "한국어 문서",
    "error": "It fails with ERR_CONN-1042: see C++.",
}


@pytest.fixture
def retriever(open_retriever: OpenRetriever) -> Retriever:
    retriever = open_retriever()
    retriever.ingest(Document(name, text, metadata={"n": name}) for name, text in TEXTS.items())
    return retriever


def words(retriever: Retriever, query: str, top_k: int = 9, **fields: object) -> list[str]:
    hits = retriever.search(query, top_k, mode="sparse", **fields)  # type: ignore[arg-type]
    return [hit.chunk.doc_id for hit in hits]


# One test for all queries: to store the texts takes longer than to ask for them.
FOUND = [
    ("hunting", ["fox", "owl"]),
    ("red hunter", ["fox"]),
    ("WHALES!", ["whale"]),
    ("cafe zurich", ["cafe"]),
    ("cafe\u0301", ["cafe"]),
    ("coffee", ["cafe"]),
    ("検索", ["kanji"]),
    ("検", ["kanji"]),
    ("る", ["kanji"]),
    ("索検", []),
    ("한국", ["hangul"]),
    ("err_conn-1042", ["error"]),
    ("zebra", []),
]
NO_WORDS = [
    '"',
    '""',
    "'",
    "*",
    "(",
    "NEAR(",
    "^",
    "body:",
    "{",
    "-",
    "+",
    ":",
    "😀",
    "\0",
    "_",
    "。",
    "́",
]
NO_OPERATORS = [
    'fox AND "',
    "fox NOT mice",
    "fox NEAR(x, 2",
    "body:fox",
    "fox*",
    "(fox",
    "fox\0",
    "fox'; --",
]


def test_words_find_their_texts(retriever: Retriever) -> None:
    assert [(query, words(retriever, query)) for query, _ in FOUND] == FOUND


def test_text_without_words_finds_nothing(retriever: Retriever) -> None:
    for query in NO_WORDS:
        assert words(retriever, query) == [], query
        dense = retriever.search(query, 3)
        hybrid = retriever.search(query, 3, mode="hybrid")
        assert [hit.chunk for hit in hybrid] == [hit.chunk for hit in dense], query


def test_operators_are_no_operators(retriever: Retriever) -> None:
    assert {query: words(retriever, query)[0] for query in NO_OPERATORS} == dict.fromkeys(
        NO_OPERATORS, "fox"
    )


@settings(max_examples=300, deadline=None)
@given(query=st.text(max_size=40))
def test_any_text_is_an_expression(query: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(words, parts, tokenize = 'ascii')")
    if expression := match_expression(analyse_query(query).terms):
        connection.execute("SELECT rowid FROM t WHERE t MATCH ?", (expression,)).fetchall()
    connection.close()


def test_a_long_query_is_cut(retriever: Retriever) -> None:
    query = " ".join(f"word{number}" for number in range(5000))
    analysed = analyse_query(query)
    asked = searched_terms(analysed, dict.fromkeys(uncounted(analysed.terms, {}), 1), lambda _: ())
    assert len(asked) == MAX_QUERY_WORDS
    assert words(retriever, f"fox {query}") == ["fox"]


def test_lone_surrogates_are_refused(retriever: Retriever) -> None:
    for mode in ("dense", "sparse", "hybrid"):
        with pytest.raises(InvalidQuery, match="surrogate at character 4"):
            retriever.search("fox \ud83d", 3, mode=mode)
    with pytest.raises(InvalidQuery, match="mode must be one of dense, sparse, hybrid"):
        retriever.search("fox", 3, mode="fuzzy")  # type: ignore[arg-type]


def test_ties_come_by_chunk_id(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(Document(name, "the same text") for name in "dbacfe")
    for top_k in (2, 4, 9):
        for mode in ("sparse", "hybrid"):
            hits = retriever.search("same", top_k, mode=mode)
            found = [hit.chunk.chunk_id for hit in hits]
            assert found == sorted(found) and len(found) == min(top_k, 6)


def test_filters_hold_for_words(retriever: Retriever) -> None:
    owl = DocFilter(where=parse_filter({"n": {"in": ["owl", "whale"]}}))
    assert words(retriever, "mice", doc_filter=owl) == ["owl"]
    assert words(retriever, "mice", doc_filter=DocFilter(())) == []
    hybrid = retriever.search("mice", 9, owl, mode="hybrid")
    assert {hit.chunk.doc_id for hit in hybrid} == {"owl", "whale"}


def test_updates_and_deletes_are_followed_at_once(retriever: Retriever) -> None:
    retriever.ingest([Document("fox", "A vixen.")])
    assert words(retriever, "red fox") == []
    assert words(retriever, "vixen") == ["fox"]
    retriever.delete(["fox"])
    assert words(retriever, "vixen") == []
    retriever.delete(list(TEXTS))
    assert words(retriever, "mice") == []
    retriever.ingest([Document("new", "mice")])
    assert words(retriever, "mice") == ["new"]


def test_another_tenant_changes_no_score(retriever: Retriever) -> None:
    """In a common table, the score of a word would depend on other tenants' documents."""
    before = retriever.search("red mice", 9, mode="sparse")
    other = Scope("other")
    retriever.ingest([Document(str(n), f"red red {n}") for n in range(50)], scope=other)
    assert retriever.search("red mice", 9, mode="sparse") == before
    assert words(retriever, "whale", scope=other) == []
    assert words(retriever, "whale", scope=Scope("nobody")) == []


def test_words_outlive_a_restart(retriever: Retriever, open_retriever: OpenRetriever) -> None:
    before = retriever.search("mice at night", 9, mode="hybrid")
    retriever.close()
    assert open_retriever().search("mice at night", 9, mode="hybrid") == before


def test_passages_tell_their_places(retriever: Retriever) -> None:
    hits = retriever.search("the owl hunts", 9, mode="hybrid")
    dense = retriever.search("the owl hunts", 99)
    sparse = retriever.search("the owl hunts", 99, mode="sparse")
    for hit in hits:
        by_meaning = [(n, d.score) for n, d in enumerate(dense, 1) if d.chunk == hit.chunk]
        by_words: list[tuple[int | None, float | None]] = [
            (n, s.score) for n, s in enumerate(sparse, 1) if s.chunk == hit.chunk
        ]
        assert [(hit.dense_rank, hit.dense_score)] == by_meaning
        assert [(hit.sparse_rank, hit.sparse_score)] == (by_words or [(None, None)])
        assert 0 <= hit.score <= 1
    assert hits[0].chunk.doc_id == "owl"
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.sparse_rank is None for hit in dense)
    assert all(hit.dense_score is None and hit.score == hit.sparse_score for hit in sparse)


def test_fusion_by_hand() -> None:
    found = combine([(1, 0.9), (2, 0.7), (3, 0.5)], [(3, 5.0), (2, 4.0), (9, 1.0)], 10.0)
    expected = {2: 0.4 * 0.5 + 0.6 * 0.4, 1: 0.4, 3: 0.6 * 0.5, 9: 0.6 * 0.1}
    assert [ranked.chunk_id for ranked in found] == [2, 1, 3, 9]
    assert {ranked.chunk_id: ranked.score for ranked in found} == pytest.approx(expected)
    # All are about as near: words decide. They hold none of the words: what is near does.
    rows = [(1, 0.53), (2, 0.52), (3, 0.51)]
    assert combine(rows, [(3, 9.0), (1, 6.0)], 10.0)[0].chunk_id == 3
    assert combine([(1, 0.8), (2, 0.2)], [(2, 1.5)], 10.0)[0].chunk_id == 1
    assert [ranked.chunk_id for ranked in combine([(7, 0.1), (4, -0.2)], None)] == [7, 4]
    assert combine([], []) == [] and combine([], [(4, 2.0)])[0].score == 0.6


def test_the_first_do_not_depend_on_how_many_are_wanted(retriever: Retriever) -> None:
    for query in ("the owl hunts mice at night", "whale", "red foxes and blue whales"):
        most = [hit.chunk.doc_id for hit in retriever.search(query, 64, mode="hybrid")]
        assert [hit.chunk.doc_id for hit in retriever.search(query, 2, mode="hybrid")] == most[:2]


def test_words_that_were_nowhere_are_found_once_they_are_there(retriever: Retriever) -> None:
    """In how many chunks words are is remembered only as long as the catalog stays as it is."""
    assert words(retriever, "zebra") == words(retriever, '"red zebra" fox')[1:] == []
    retriever.ingest([Document("zebra", "A red zebra grazes.")])
    assert words(retriever, "zebra") == ["zebra"]
    assert words(retriever, '"red zebra" fox')[0] == "zebra"
    retriever.delete(["fox", "zebra"])
    assert words(retriever, '"red zebra" fox') == []
