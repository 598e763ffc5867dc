"""Whether the embedder suits the languages of what is stored."""

from __future__ import annotations

from pathlib import Path

from kvstitch.retriever import ChunkSettings, Document, Retriever
from kvstitch.service.gateway.search.embedder_advice import EmbedderAdvice
from tests.fakes.models import HashingEmbedder, WordCounter

ENGLISH = "The pump has to be switched off before its housing is opened by a technician."
GERMAN = "Die Pumpe muss abgeschaltet werden, bevor ein Techniker ihr Gehäuse öffnet."


def opened(folder: Path, name: str) -> Retriever:
    embedder = HashingEmbedder()
    embedder.name = name
    retriever = Retriever.in_folder(folder, embedder, ChunkSettings(WordCounter()))
    retriever.start()
    return retriever


def test_a_fourth_of_the_documents_is_enough(tmp_path: Path) -> None:
    retriever = opened(tmp_path, "all-MiniLM-L6-v2")
    advice = EmbedderAdvice(retriever)
    retriever.ingest([Document(f"en{n}", f"{ENGLISH} {n}") for n in range(5)])
    assert advice.sentences() == []
    retriever.ingest([Document("de", GERMAN)])
    assert advice.sentences() == []
    retriever.ingest([Document("de2", GERMAN)])
    (sentence,) = advice.sentences()
    assert sentence.startswith("29% of the newest documents are not in English")
    unsure = ["M8 PPR-9087", "", "def f(x): return x + 1"]
    nothing, own, *others = advice.warnings([ENGLISH, GERMAN, *unsure])
    assert own.startswith("it is not in English") and own[-80:] == sentence[-80:]
    assert [nothing, *others] == ["", "", "", ""]
    retriever.delete(["de"])
    assert advice.sentences() == []
    assert advice.warnings([GERMAN]) == [own], "a warning tells of others' documents"


def test_an_embedder_of_many_languages(tmp_path: Path) -> None:
    retriever = opened(tmp_path, "multilingual-e5-small")
    retriever.ingest([Document(f"de{n}", f"{GERMAN} {n}") for n in range(5)])
    advice = EmbedderAdvice(retriever)
    assert advice.sentences() == [] and advice.warnings([GERMAN]) == [""]
