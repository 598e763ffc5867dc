"""The retriever behind the event loop: filters, modes, scopes and reranking reach it."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from kvstitch.retriever import (
    ChunkSettings,
    Document,
    EndpointEmbedder,
    EndpointReranker,
    LocalEmbedder,
    Reranker,
    Retriever,
    Scope,
    parse_filter,
)
from kvstitch.retriever.embedders import CountedVectors, space_of
from kvstitch.retriever.embedders.sentence_model_folder import SentenceModelFolder
from kvstitch.retriever.errors import EmbedderError, SplitStopped
from kvstitch.retriever.ingest import EmbeddedDocument
from kvstitch.service.errors import InvalidRequest, PromptTooLong
from kvstitch.service.gateway.search import async_retriever
from kvstitch.service.gateway.search.async_retriever import (
    AsyncRetriever,
    former_embedder,
    make_embedder,
    make_reranker,
)
from kvstitch.service.gateway.search.passage_search import FoundPassages, PassageSearch
from kvstitch.service.gateway.search.search_query import SearchQuery
from kvstitch.service.settings import Settings
from tests.fakes.models import HashingEmbedder, OverlapReranker, WordCounter

DOCUMENTS = [
    Document("fox", "the red fox hunts mice", metadata={"legs": 4}),
    Document("owl", "the owl hunts mice at night", metadata={"legs": 2}),
    Document("sea", "whales sing in the sea", metadata={"legs": 0}),
]
ACME = Scope("acme", "animals")


class StuckReranker(OverlapReranker):
    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        await asyncio.Event().wait()
        return []


async def ingest(retriever: AsyncRetriever, documents: Sequence[Document]) -> None:
    embedded = [EmbeddedDocument(**vars(document), scope=ACME) for document in documents]
    await retriever.embed(embedded)
    await retriever.store(embedded)


async def opened(folder: Path, reranker: Reranker | None) -> AsyncRetriever:
    inner = Retriever.in_folder(folder, HashingEmbedder(), ChunkSettings(WordCounter()))
    retriever = AsyncRetriever(inner, reranker)
    await retriever.start()
    await ingest(retriever, DOCUMENTS)
    return retriever


def passages_of(retriever: AsyncRetriever, deadline_s: float = 30.0) -> PassageSearch:
    return PassageSearch(retriever, lambda: Settings(rerank_deadline_s=deadline_s))


@pytest.fixture
async def retriever(tmp_path: Path) -> AsyncIterator[AsyncRetriever]:
    retriever = await opened(tmp_path, OverlapReranker())
    yield retriever
    await retriever.close()


async def search(
    retriever: AsyncRetriever, text: str, top_k: int, deadline_s: float = 30.0, **fields: Any
) -> FoundPassages:
    query = SearchQuery(text, top_k, **{"scope": ACME, **fields})
    passages = passages_of(retriever, deadline_s)
    find = partial(passages.find, query)
    return await passages.search(find, lambda found: found, rerank=query.rerank)


async def test_passages_are_found_and_used_on_one_search_thread(retriever: AsyncRetriever) -> None:
    query = SearchQuery("owl at night", 2, scope=ACME)

    def find_and_count() -> tuple[int, str]:
        return len(passages_of(retriever).find(query).passages), threading.current_thread().name

    def fail() -> None:
        raise PromptTooLong("too long")

    count, thread = await retriever.run(find_and_count)
    assert count == 2 and thread != threading.current_thread().name
    with pytest.raises(PromptTooLong):
        await retriever.run(fail)


async def test_filters_modes_and_scopes(retriever: AsyncRetriever) -> None:
    async def found(**fields: Any) -> list[str]:
        result = await search(retriever, "mice", 9, **fields)
        return [passage.chunk.doc_id for passage in result.passages]

    assert sorted(await found()) == ["fox", "owl", "sea"]
    assert sorted(await found(mode="sparse")) == ["fox", "owl"]
    assert await found(mode="hybrid", where=parse_filter({"legs": {"lt": 3}})) == ["owl", "sea"]
    assert await found(doc_ids=("fox", "sea"), where=parse_filter({"legs": {"gt": 0}})) == ["fox"]
    assert await found(scope=Scope()) == []
    catalog = retriever.catalog
    assert await retriever.change(catalog.set_pinned, ["fox", "x"], True, scope=ACME) == ["fox"]
    [animals] = await retriever.run(catalog.collections, "acme")
    assert animals.collection == "animals"
    assert (await retriever.run(catalog.counts, scope=ACME)).documents == 3
    assert (await retriever.run(catalog.counts, scope=Scope())).documents == 0


async def test_reranked_passages(retriever: AsyncRetriever) -> None:
    found = await search(retriever, "owl at night", 2, rerank=True)
    assert [passage.rerank_score for passage in found.passages] == [1.0, 0.0]
    assert found.warnings == () and found.rerank_s > 0
    assert found.passages[0].dense_rank == 1


async def test_a_late_reranker_is_done_without(tmp_path: Path) -> None:
    retriever = await opened(tmp_path, StuckReranker())
    plain = await search(retriever, "mice", 2)
    found = await search(retriever, "mice", 2, deadline_s=0.05, rerank=True)
    assert found.passages == plain.passages
    assert "no answer within 0.05 s" in found.warnings[0]
    await retriever.close()


async def test_reranking_without_a_reranker_is_refused(tmp_path: Path) -> None:
    retriever = await opened(tmp_path, None)
    with pytest.raises(InvalidRequest, match="KVSTITCH_RERANKER_URL"):
        await search(retriever, "mice", 2, rerank=True)
    await retriever.close()


async def test_delete_takes_several_and_save_leaves_nothing(
    retriever: AsyncRetriever, tmp_path: Path
) -> None:
    delete = retriever.retriever.delete
    assert len(await retriever.change(delete, ["fox", "owl", "unknown"], scope=ACME)) == 2
    await retriever.save()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunts" in path.read_bytes()]


def test_settings_choose_embedder_and_reranker(tmp_path: Path) -> None:
    plain = Settings(data_dir=tmp_path)
    assert isinstance(make_embedder(plain), LocalEmbedder)
    assert make_reranker(plain) is None
    remote = Settings(
        data_dir=tmp_path,
        embedder="bge",
        embedder_url="http://127.0.0.1:9/v1",
        reranker_url="http://127.0.0.1:9/rerank",
        reranker_style="cohere",
    )
    remote_embedder = make_embedder(remote)
    assert isinstance(remote_embedder, EndpointEmbedder) and remote_embedder.name == "bge"
    assert isinstance(make_reranker(remote), EndpointReranker)


class Better(HashingEmbedder):
    """Another embedder; the first time it is used it cannot be reached."""

    name = "better"
    tried = False

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        if not self.tried:
            self.tried = True
            raise EmbedderError("nobody answers")
        return super().embed(texts)


async def test_another_embedder_answers_once_it_has_embedded_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await opened(tmp_path, None)).close()
    chunking = ChunkSettings(WordCounter())

    async def changed() -> AsyncRetriever:
        inner = Retriever.in_folder(tmp_path, Better(), chunking)
        inner.former = lambda space: HashingEmbedder()
        made = AsyncRetriever(inner)
        await made.start()
        return made

    retriever = await changed()
    inner = retriever.retriever
    async with asyncio.timeout(60):
        while not (inner.renewal and inner.renewal.failure):
            await asyncio.sleep(0.01)
    (advice,) = await retriever.run(retriever.advice.sentences)
    assert advice.startswith("0 of 3 chunks are embedded by better; until all are, hashing answers")
    assert "nobody answers" in advice
    assert (await search(retriever, "red fox", 1, mode="dense")).passages[0].chunk.doc_id == "fox"
    await retriever.close()

    monkeypatch.setattr(async_retriever, "RENEW_AGAIN_S", 0.01)
    retriever = await changed()
    async with asyncio.timeout(60):
        while retriever.retriever.renewal is not None:
            await asyncio.sleep(0.01)
    assert await retriever.run(retriever.advice.sentences) == []
    assert (await search(retriever, "red fox", 1, mode="dense")).passages[0].chunk.doc_id == "fox"
    await retriever.close()
    assert Retriever.in_folder(tmp_path, Better(), chunking).start().rebuilt is None


def test_the_former_embedder_is_the_default_or_lies_beside(tmp_path: Path) -> None:
    default = LocalEmbedder(dtype="float32")
    default.start()
    space = space_of(default)
    settings = Settings(
        data_dir=tmp_path, embedder=str(tmp_path / "other"), embedder_dtype="float32"
    )
    found = former_embedder(settings, space)
    assert found is not None and space_of(found) == space
    named = replace(space, name="mine")
    assert former_embedder(settings, named) is None
    shutil.copytree(SentenceModelFolder.read(None).path, tmp_path / "mine")
    found = former_embedder(settings, named)
    assert found is not None and space_of(found) == named


async def test_a_large_collection_gets_lists_while_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [(topic, number) for topic in range(30) for number in range(40)]
    documents = [Document(f"d{t}-{n}", f"topic{t} matter{t} n{n}") for t, n in texts]

    def made() -> AsyncRetriever:
        settings = ChunkSettings(WordCounter())
        embedder = HashingEmbedder()
        whole = Retriever.in_folder(tmp_path, embedder, settings, exact_up_to=1_000)
        return AsyncRetriever(whole)

    async def best(retriever: AsyncRetriever) -> str:
        found = await search(retriever, "topic7 matter7 n11", 3, mode="dense")
        return found.passages[0].chunk.doc_id

    retriever = made()
    await retriever.start()
    await ingest(retriever, documents)
    with caplog.at_level("INFO", logger="kvstitch.retriever"):
        await retriever.save()
        async with asyncio.timeout(60):
            while "1200 vectors lie in" not in caplog.text:
                assert await best(retriever) == "d7-11"
    assert await best(retriever) == "d7-11" and 0.99 <= retriever.retriever.index.recall <= 1
    await retriever.change(retriever.retriever.delete, ["d7-11"], scope=ACME)
    assert await best(retriever) != "d7-11"
    await retriever.close()
    caplog.clear()
    again = made()
    with caplog.at_level("INFO", logger="kvstitch.retriever"):
        await again.start()
    assert "rebuilt" not in caplog.text and "lists" not in caplog.text
    assert await best(again) != "d7-11"
    await again.close()


class SlowToSplit:
    """Splits until nobody waits for it."""

    catalog = None

    def __init__(self) -> None:
        self.began = threading.Event()
        self.embedding = self

    def split(self, document: object, stopped: Callable[[], bool]) -> None:
        self.began.set()
        while not stopped():
            time.sleep(0.01)
        raise SplitStopped


async def test_memory_is_given_back_when_an_abandoned_split_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread cannot be cancelled: it is told to stop, and what it held is freed after that."""
    given, slow = threading.Event(), SlowToSplit()
    monkeypatch.setattr(async_retriever, "give_back", given.set)
    retriever = AsyncRetriever(cast(Any, slow))
    waiting = asyncio.create_task(retriever.split(EmbeddedDocument(**vars(DOCUMENTS[0]))))
    await asyncio.to_thread(slow.began.wait)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await asyncio.to_thread(given.wait, 60.0)
    await retriever.close()
