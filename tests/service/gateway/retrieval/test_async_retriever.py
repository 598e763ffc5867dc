"""The retriever behind the event loop: filters, modes, scopes and reranking reach it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from retriever import (
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
from retriever.testing import HashingEmbedder, OverlapReranker, WordCounter
from service.errors import InvalidRequest, PromptTooLong
from service.gateway.retrieval.async_retriever import AsyncRetriever, RetrievalResult, TimedEmbedder
from service.gateway.retrieval.model_factory import make_embedder, make_reranker
from service.settings import Settings

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


async def opened(
    folder: Path, reranker: Reranker | None, deadline_s: float = 30.0
) -> AsyncRetriever:
    embedder = TimedEmbedder(HashingEmbedder())
    retriever = Retriever.in_folder(folder, embedder, ChunkSettings(WordCounter()))
    retriever = AsyncRetriever(retriever, embedder, reranker, rerank_deadline_s=deadline_s)
    await retriever.start()
    await retriever.ingest(DOCUMENTS, scope=ACME)
    return retriever


@pytest.fixture
async def retriever(tmp_path: Path) -> AsyncIterator[AsyncRetriever]:
    retriever = await opened(tmp_path, OverlapReranker())
    yield retriever
    await retriever.close()


def itself(found: RetrievalResult) -> RetrievalResult:
    return found


async def test_what_is_made_of_the_passages(retriever: AsyncRetriever) -> None:
    """On the thread that found them, reranked or not; what goes wrong there comes out."""
    for reranked in (False, True):
        made = await retriever.search(
            "owl at night", 2, None, scope=ACME, reranked=reranked,
            then=lambda found: (len(found.passages), threading.current_thread().name),
        )  # fmt: skip
        assert made[0] == 2 and made[1] != threading.current_thread().name
        with pytest.raises(PromptTooLong):
            await retriever.search("owl", 2, None, scope=ACME, reranked=reranked, then=too_long)


def too_long(found: RetrievalResult) -> RetrievalResult:
    raise PromptTooLong("too long")


async def test_filters_modes_and_scopes(retriever: AsyncRetriever) -> None:
    async def found(**fields: object) -> list[str]:
        asked: Any = {"doc_ids": None, "scope": ACME, "then": itself, **fields}
        result = await retriever.search("mice", 9, **asked)
        return [passage.chunk.doc_id for passage in result.passages]

    assert sorted(await found()) == ["fox", "owl", "sea"]
    assert sorted(await found(mode="sparse")) == ["fox", "owl"]
    assert await found(mode="hybrid", where=parse_filter({"legs": {"lt": 3}})) == ["owl", "sea"]
    assert await found(doc_ids=["fox", "sea"], where=parse_filter({"legs": {"gt": 0}})) == ["fox"]
    assert await found(scope=Scope()) == []
    assert await retriever.set_pinned(["fox", "x"], True, scope=ACME) == ["fox"]
    assert [name for name, _ in await retriever.collections("acme")] == ["animals"]
    assert (await retriever.counts(scope=ACME)).documents == 3
    assert (await retriever.counts(scope=Scope())).documents == 0


async def test_reranked_passages(retriever: AsyncRetriever) -> None:
    found = await retriever.search("owl at night", 2, None, scope=ACME, reranked=True, then=itself)
    assert [passage.rerank_score for passage in found.passages] == [1.0, 0.0]
    assert found.warnings == () and found.rerank_s > 0
    assert found.passages[0].dense_rank == 1


async def test_a_late_reranker_is_done_without(tmp_path: Path) -> None:
    retriever = await opened(tmp_path, StuckReranker(), deadline_s=0.05)
    plain = await retriever.search("mice", 2, None, scope=ACME, then=itself)
    found = await retriever.search("mice", 2, None, scope=ACME, reranked=True, then=itself)
    assert found.passages == plain.passages
    assert "no answer within 0.05 s" in found.warnings[0]
    await retriever.close()


async def test_reranking_without_a_reranker_is_refused(tmp_path: Path) -> None:
    retriever = await opened(tmp_path, None)
    with pytest.raises(InvalidRequest, match="KVSTITCH_RERANKER_URL"):
        await retriever.search("mice", 2, None, scope=ACME, reranked=True, then=itself)
    await retriever.close()


async def test_delete_takes_several_and_save_leaves_nothing(
    retriever: AsyncRetriever, tmp_path: Path
) -> None:
    assert len(await retriever.delete("fox", "owl", "unknown", scope=ACME)) == 2
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
