"""What a query names exactly comes first, whatever else is alike."""

from __future__ import annotations

from kvstitch.retriever import Document, Retriever, SearchMode
from kvstitch.retriever.analysis.analyser import MAX_QUERY_WORDS, analyse_query, question_of
from kvstitch.retriever.index.full_text import searched_terms
from kvstitch.retriever.search import FusedHit, exact_first
from tests.retriever.conftest import OpenRetriever

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)


def first(retriever: Retriever, query: str) -> list[str]:
    modes: tuple[SearchMode, ...] = ("sparse", "hybrid")
    return [retriever.search(query, 3, mode=mode)[0].chunk.doc_id for mode in modes]


def test_identifiers_are_before_their_twins(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    names = ["KX-4417", "KX-4471", "KX-7441", "2023-11-02", "2023-02-11", "3.14.1", "14.1.3",
             "10.1.0.12", "10.12.0.1", "ORA-01555", "ORA-01515", "§ 34a", "§ 43a"]  # fmt: skip
    retriever.ingest(Document(n, f"Entry {n}: checked, nothing to report.") for n in names)
    for name in names:
        for query in (name, f"What was reported about entry {name}, and was it checked at all?"):
            assert first(retriever, query) == [name, name], query
    assert first(retriever, "KX 4471") == ["KX-4471"] * 2
    assert first(retriever, "kx4471") == ["KX-4471"] * 2
    best = retriever.search("KX-4471", 9, mode="hybrid")
    assert best[0].exact and best[0].score == max(hit.score for hit in best)
    assert [p.score for p in best] == sorted((p.score for p in best), reverse=True)


def test_numbers_of_clauses_are_before_their_twins(open_retriever: OpenRetriever) -> None:
    """As Word's automatic numbers are stored: before the clause, or in the heading above it."""
    retriever = open_retriever()
    numbers = ["2.1", "2.2", "2.20", "2.2.1", "12.2", "2.12"]
    retriever.ingest(Document(n, f"{n} The tenant pays what is due in time.") for n in numbers)
    for number in numbers:
        for query in (number, f"What must the tenant pay by clause {number}?"):
            assert first(retriever, query) == [number, number], query


def test_quoted_words_are_a_phrase(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    apart = "Slow water, slow rivers, rivers of slow water. Rivers! Slow."
    retriever.ingest(Document(f"x{n}", f"{apart} {n}") for n in range(5))
    retriever.ingest([Document("wanted", "A long page on many matters, among them slow rivers.")])
    retriever.ingest([Document("other", "Rivers slow down.")])
    for query in (
        'tell me of "rivers of slow water" here now please do it',
        "rivers of slow water",
    ):
        assert first(retriever, query)[0].startswith("x")
    assert first(retriever, 'what do people say of "among them" in this land of ours') == [
        "wanted", "wanted"
    ]  # fmt: skip


def test_a_word_and_its_number_are_one_name(open_retriever: OpenRetriever) -> None:
    """Other rows have the number elsewhere, and the word before others."""
    retriever = open_retriever()
    retriever.ingest(
        Document(f"row{n}", f"Station: Gauge {n} | Keeper: {40 - n} | Mark: {n * 7 % 40} cm")
        for n in range(1, 40)
    )
    for n in (7, 19, 31):
        assert first(retriever, f"Who is the keeper of gauge {n}?") == [f"row{n}"] * 2
    season = analyse_query("Who sang in season 5 of the show about the singers?")
    assert not season.exact  # many have that: it only counts


def test_a_misspelt_word_finds_what_it_means(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(
        [Document("guard", "The guard time defaults to two seconds."),
         Document("messages", "Messages are spooled to disk."),
         Document("turn", "The τραπέζια are full."), Document("gate", "The garden gate is shut.")]
    )  # fmt: skip
    for asked, found in (
        ("gaurd", "guard"), ("gurad", "guard"), ("guards", "guard"), ("mesages", "messages"),
        ("emssages", "messages"), ("messagse", "messages"), ("τραπέξια", "turn"),
    ):  # fmt: skip
        hits = retriever.search(asked, 3, mode="sparse")
        assert [hit.chunk.doc_id for hit in hits] == [found], asked
    for asked in ("gaurt", "gat", "elephants", "gu"):
        assert retriever.search(asked, 3, mode="sparse") == []
    # It counts as much as if it were spelt right.
    vector = retriever.embed_query("time")
    wrong, right = (
        [(p.chunk.doc_id, p.score) for p in retriever.search(word, 3, mode="hybrid", vector=vector)]
        for word in ("gaurd", "guard")
    )
    assert wrong == right
    # A word that is there is looked for as it is.
    retriever.ingest([Document("message", "gaurd is a name")])
    assert first(retriever, "gaurd")[0] == "message"
    asked_for = searched_terms(analyse_query("gaurd " * 3 + "absent"), {}, lambda _: [("guard", 2)])
    assert [term.spellings for term in asked_for.values()] == [(("guard",),)]


def test_a_long_question_is_searched_by_rare_words_and_its_end(
    open_retriever: OpenRetriever,
) -> None:
    retriever = open_retriever()
    retriever.ingest(Document(f"d{n}", f"common{n % 3} words of page {n}") for n in range(30))
    retriever.ingest([Document("rare", "zirconium flange"), Document("end", "lastword")])
    filler = " ".join(f"absent{n}" for n in range(400))
    common = "common0 common1 common2 words of page"
    query = f"{common} zirconium {filler} {common} lastword"
    found = [p.chunk.doc_id for p in retriever.search(query, 40, mode="sparse")]
    assert {"rare", "end"} <= set(found)
    counted = dict.fromkeys((f"absent{n}" for n in range(400)), 3)
    counted |= {"zirconium": 1, "lastword": 9}
    asked = searched_terms(analyse_query(query), counted, lambda _: ())
    assert len(asked) == MAX_QUERY_WORDS
    spelled = {spelling for term in asked.values() for spelling in term.spellings}
    assert {("zirconium",), ("lastword",), ("absent399",)} <= spelled


def test_what_a_long_text_asks() -> None:
    mail = "We met in the old hall and spoke of many things that day. " * 20
    assert question_of("Where is it?") is None
    assert question_of(f"{mail} Where are the gaskets kept? Yours, Ada") == (
        "Where are the gaskets kept?"
    )
    assert question_of(f"{mail} أين المفتاح؟") == "أين المفتاح؟"
    assert str(question_of(mail)).endswith("that day.")


def test_exact_first_by_hand() -> None:
    hits = [FusedHit(1, 0.5), FusedHit(2, 0.4), FusedHit(3, 0.3)]
    made = exact_first(hits, [{2, 3}, {3}, set()], most=9)
    assert [hit.chunk_id for hit in made] == [3, 2, 1], "what fewer hold counts for more"
    assert [hit.score for hit in made] == [0.5, 0.5, 0.5]
    assert made[2] == hits[0]
    assert [h.chunk_id for h in exact_first(hits, [{7, 8, 9}], most=2)] == [7, 8, 1, 2, 3]
    assert exact_first(hits, [], most=9) == hits
