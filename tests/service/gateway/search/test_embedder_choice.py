"""Which embedder the first documents get, where nobody named one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvstitch.retriever import ChunkSettings, Document, Embedder, Retriever
from kvstitch.retriever.embedders import EmbeddingSpace, space_of
from kvstitch.retriever.errors import EmbedderMismatch
from kvstitch.retriever.ingest import EmbeddedDocument
from kvstitch.service.gateway.search.async_retriever import (
    AsyncRetriever,
    make_embedder,
    multilingual_embedder,
    named_folder,
)
from kvstitch.service.settings import Settings
from tests.fakes.models import HashingEmbedder, WordCounter
from tests.service.gateway.search.test_embedder_advice import ENGLISH, GERMAN


class English(HashingEmbedder):
    name = "all-MiniLM-L6-v2"


class Multilingual(HashingEmbedder):
    name = "multilingual-e5-small-1"

    def __init__(self) -> None:
        super().__init__(48)


def fetched() -> Embedder:
    made = Multilingual()
    made.start()
    return made


def former(space: EmbeddingSpace) -> Embedder | None:
    made = fetched()
    return made if space_of(made) == space else None


async def opened(folder: Path, *, named: bool = False) -> AsyncRetriever:
    inner = Retriever.in_folder(folder, English(), ChunkSettings(WordCounter()))
    inner.former = former
    made = AsyncRetriever(inner)
    if not named:
        inner.follows, made.advice.multilingual = True, fetched
    await made.start()
    return made


async def ingest(retriever: AsyncRetriever, *texts: str) -> list[str]:
    """Ingest documents; returns the embedders of what is stored."""
    documents = [EmbeddedDocument(f"d{n}-{text}"[:20], text) for n, text in enumerate(texts)]
    await retriever.embed(documents)
    assert [result.error for result in await retriever.store(documents)] == [None] * len(texts)
    return [space.name for space in retriever.catalog.spaces()]


def first(retriever: AsyncRetriever, query: str) -> str:
    return retriever.retriever.search(query, 1)[0].chunk.text


async def test_the_first_documents_choose_and_a_restart_keeps_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = await opened(tmp_path)
    texts = [ENGLISH, "The valve is green.", "The tank is empty today.", GERMAN]
    assert await ingest(retriever, *texts) == [Multilingual.name]
    (said,) = retriever.advice.sentences()
    assert said.startswith("25% of the first documents are not in English, so multilingual-e5")
    assert [record.levelno for record in caplog.records if said in record.message] == [
        logging.WARNING
    ]
    assert first(retriever, "valve green") == texts[1]
    assert await ingest(retriever, ENGLISH) == [Multilingual.name]
    await retriever.close()

    retriever = await opened(tmp_path)
    assert retriever.retriever.embedder.name == Multilingual.name
    assert retriever.retriever.renewal is None and retriever.advice.sentences() == []
    assert first(retriever, "valve green") == texts[1]
    await retriever.close()

    retriever = await opened(tmp_path, named=True)
    assert retriever.retriever.renewal is not None, "a named embedder embeds anew"
    await retriever.close()


async def test_later_documents_change_nothing(tmp_path: Path) -> None:
    retriever = await opened(tmp_path)
    assert await ingest(retriever) == []
    assert await ingest(retriever, ENGLISH) == [English.name]
    assert await ingest(retriever, *(f"{GERMAN} {n}" for n in range(6))) == [English.name]
    (said,) = retriever.advice.sentences()
    assert "model fetch" in said
    await retriever.close()


async def test_one_that_was_named_or_not_fetched_is_not_changed(tmp_path: Path) -> None:
    for name, named in (("named", True), ("none", False)):
        retriever = await opened(tmp_path / name, named=named)
        if not named:
            retriever.advice.multilingual = lambda: None
        assert await ingest(retriever, GERMAN) == [English.name]
        await retriever.close()


async def test_a_long_document_chooses_before_it_is_split(tmp_path: Path) -> None:
    retriever = await opened(tmp_path)
    document = EmbeddedDocument("long", f"{GERMAN} " * 60)
    await retriever.split(document)
    await retriever.embed_part(document, 0, len(document.spans))
    assert document.space is not None and document.space.name == Multilingual.name
    (result,) = await retriever.store([document])
    assert result.error is None and len(result.chunks) > 1
    await retriever.close()


async def test_what_was_embedded_before_the_choice_is_embedded_anew(tmp_path: Path) -> None:
    retriever = await opened(tmp_path)
    early = EmbeddedDocument("early", ENGLISH)
    await retriever.embed([early])
    assert await ingest(retriever, GERMAN) == [Multilingual.name]
    await retriever.store([early])
    assert [space.name for space in retriever.catalog.spaces()] == [Multilingual.name]
    assert first(retriever, "technician housing pump") == ENGLISH
    await retriever.close()


def test_an_embedder_that_is_gone_is_not_replaced(tmp_path: Path) -> None:
    chunking = ChunkSettings(WordCounter())
    retriever = Retriever.in_folder(tmp_path, fetched(), chunking)
    retriever.start()
    retriever.ingest([Document("de", GERMAN)])
    retriever.close()
    again = Retriever.in_folder(tmp_path, English(), chunking)
    again.follows = True
    with pytest.raises(EmbedderMismatch, match="embedded by multilingual-e5-small-1"):
        again.start()


def test_the_default_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()

    def folder(embedder: str) -> Path | None:
        return named_folder(Settings(data_dir=tmp_path, embedder=embedder))

    assert [folder(""), folder("all-MiniLM-L6-v2"), folder("other")] == [None, None, Path("other")]
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    assert [folder(""), folder("all-MiniLM-L6-v2")] == [None, Path("all-MiniLM-L6-v2")]


def test_a_folder_that_was_fetched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(data_dir=tmp_path, model_cache=tmp_path, embedder_dtype="float32")
    assert multilingual_embedder(settings) is None
    damaged = tmp_path / "multilingual-e5-small-1"
    damaged.mkdir()
    assert multilingual_embedder(settings) is None
    assert f"{damaged} is not used" in caplog.text
    default = make_embedder(settings)
    default.start()
    whole = tmp_path / "multilingual-e5-small-2"
    whole.symlink_to(default._require().folder.path)  # type: ignore[attr-defined]
    found = multilingual_embedder(settings)
    assert found is not None and found.revision == default.revision
