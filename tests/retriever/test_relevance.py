"""How far passages are about a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvstitch.retriever import Chunk, ChunkSettings, Document, LocalEmbedder, Passage, Retriever
from kvstitch.retriever.relevance import FITS, FLOOR, Evidence, evidence, relevance, weighty_words
from kvstitch.retriever.scope import Scope
from tests.fakes.models import HashingEmbedder, WordCounter

TEXTS = {
    "kettle": "The Brightwater kettle boils a litre of water in two minutes.",
    "guarantee": "The guarantee of the kettle lasts thirty months from the day of purchase.",
    "tent": "The Corrie tent weighs three kilograms and sleeps four people.",
    "ferry": "The ferry to Lorvik leaves at seven and takes cars, bicycles and dogs.",
    "bread": "Rye bread is baked for an hour and rests overnight before it is cut.",
}


def passage(text: str, cosine: float | None = None, bm25: float | None = None) -> Passage:
    chunk = Chunk(1, "doc", 0, text, "", 0, len(text), 1, "")
    return Passage(chunk, 0.0, dense_score=cosine, sparse_score=bm25)


def found(question: str, *passages: Passage) -> Evidence:
    gathered = evidence(question, dict.fromkeys(weighty_words(question), 1.0), passages)
    assert gathered is not None
    return gathered


def test_words_that_only_ask_count_for_nothing() -> None:
    def words(question: str) -> list[str]:
        return [term.spellings[0][0] for term in weighty_words(question)]

    assert sorted(words("How long is the guarantee of the kettle?")) == ["guarante", "kettl"]
    assert words("Wie viele Knochen?") == words("Combien de Knochen ?") == ["knochen"]
    assert sorted(words("Who are you?")) == ["ar", "who", "you"]  # nothing else is there


def test_the_share_of_words_is_that_of_the_passage_that_holds_most() -> None:
    lasts = passage("The guarantees last thirty months.")
    boils = passage("The kettle boils.")
    assert found("How long does the guarantee of the kettle last?", lasts, boils).held == (
        pytest.approx(2 / 3)
    )
    rarity = {term: 3.0 if term.spellings[0][0] == "kettl" else 1.0
              for term in weighty_words("guarantee of the kettle")}  # fmt: skip
    rare = evidence("guarantee of the kettle", rarity, [lasts, boils])
    assert rare is not None and rare.held == pytest.approx(3 / 4)


def test_parts_of_compounds_hold_a_word() -> None:
    text = "Das Installationshandbuch beschreibt alle Schritte, die dafür nötig sind."
    assert found("Handbuch", passage(text)).held == 1.0
    assert found("hand", passage("This sentence is about beforehand and nothing.")).held == 0.0


@pytest.mark.parametrize(
    ("question", "held"),
    [("gaurantee", 1.0), ("guaranteee", 1.0), ("guarntee", 1.0), ("gauratnee", 0.0), ("sean", 0.0)],
)
def test_a_misspelt_word_is_held(question: str, held: float) -> None:
    assert found(question, passage("The guarantee of the seal lasts.")).held == held


def test_what_stands_out_is_the_nearest_before_the_others() -> None:
    near, far = passage("a kettle", 0.8, 2.2), passage("a tent", 0.2)
    gathered = found("kettle", near, far, replace(far, dense_score=0.4))
    assert gathered.cosine == 0.8 and gathered.lead == pytest.approx(0.5)
    assert gathered.matched == pytest.approx(1.0)
    alone = found("kettle", near)
    assert alone.lead is None and found("kettle", passage("a kettle")).cosine is None


def test_a_question_in_another_language_is_not_judged() -> None:
    text = (
        "Die Kündigungsfrist für Mietwohnungen beträgt drei Monate. Der Brief ist unterschrieben."
    )
    question = "How much notice do I have to give for my rented flat?"
    rarity = dict.fromkeys(weighty_words(question), 1.0)
    assert evidence(question, rarity, [passage(text)]) is None
    assert (
        evidence(question, rarity, [passage("The notice for a rented flat is long.")]) is not None
    )
    assert evidence(question, {}, [passage(text)]) is None


@pytest.fixture(scope="module")
def retriever(
    tmp_path_factory: pytest.TempPathFactory, minilm: LocalEmbedder
) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp("relevance")
    made = Retriever.in_folder(folder, minilm, ChunkSettings(WordCounter(), 64))
    made.start()
    made.ingest(Document(name, text) for name, text in TEXTS.items())
    yield made
    made.catalog.close()


@pytest.mark.parametrize(
    ("question", "about"),
    [
        ("How long does the guarantee of the kettle last?", True),
        ("When does the ferry to Lorvik leave?", True),
        ("How heavy is the Corrie tent?", True),
        ("Who painted the Mona Lisa?", False),
        ("What is the capital of Australia?", False),
        ("How do I file my taxes?", False),
    ],
)
@pytest.mark.parametrize(("mode", "top_k"), [("hybrid", 5), ("hybrid", 1), ("dense", 3)])
def test_questions_are_told_apart(
    retriever: Retriever, question: str, about: bool, mode: str, top_k: int
) -> None:
    passages = retriever.search(question, top_k, mode=mode)  # type: ignore[arg-type]
    how_far = retriever.relevance(question, passages)
    assert how_far is not None and (how_far >= FLOOR) is about


def test_an_embedder_that_nothing_is_known_of_is_judged_by_words(tmp_path: Path) -> None:
    retriever = Retriever.in_folder(tmp_path, HashingEmbedder(), ChunkSettings(WordCounter(), 64))
    retriever.start()
    retriever.ingest(Document(name, text) for name, text in TEXTS.items())

    def judged(question: str) -> float | None:
        return retriever.relevance(question, retriever.search(question, 3, mode="hybrid"))

    known, unknown = judged("When does the ferry leave?"), judged("Who painted the Mona Lisa?")
    assert known is not None and unknown is not None and unknown < FLOOR <= known
    assert retriever.relevance("Who?", [], scope=Scope("default", "nowhere")) is None
    assert relevance(Evidence(1.0, None, -1.0, None), "unheard of") == relevance(
        Evidence(1.0, 1.0, 1.0, 1.0), "unheard of"
    )
    retriever.close()


@pytest.mark.parametrize("name", ["multilingual-e5-small", "multilingual-e5-small-773ce23a480d"])
def test_cosines_of_e5_lie_close_together_and_count_all_the_same(name: str) -> None:
    near, far = Evidence(0.5, 0.4, 0.87, 0.04), Evidence(0.5, 0.4, 0.80, 0.0)
    assert relevance(far, name) < FLOOR < relevance(near, name)
    assert relevance(far, "unheard of") == relevance(near, "unheard of") > FLOOR


@pytest.mark.parametrize(
    "name",
    ["multilingual-e5-small-legal", "multilingual-e5-small-legal-773ce23a480d",
     "all-MiniLM-L6-v2-legal", "my-all-MiniLM-L6-v2", "all-MiniLM-L6-v2-773ce23a480"],
)  # fmt: skip
def test_an_embedder_that_was_made_of_a_known_one_is_judged_by_words(name: str) -> None:
    found = Evidence(0.3, 0.4, 0.87, 0.04)
    assert relevance(found, name) == relevance(found, "unheard of") < FLOOR
    assert min(relevance(found, known) for known in FITS) > FLOOR


def test_a_word_is_the_rarer_the_fewer_chunks_have_it(retriever: Retriever) -> None:
    kettle, ferry, nowhere = weighty_words("kettle ferry Zanzibar")
    found = retriever.catalog.rarity([kettle, ferry, nowhere])
    words = {term.spellings[0][0]: rarity for term, rarity in found.items()}
    # ln(1 + (5 - n + 1/2) / (n + 1/2))
    assert words["kettl"] == pytest.approx(0.8755, abs=1e-3)
    assert words["ferri"] == pytest.approx(1.3863, abs=1e-3)
    assert words["zanzibar"] == pytest.approx(2.4849, abs=1e-3)
