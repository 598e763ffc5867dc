"""Reranking over real sockets: both styles, and late or broken answers."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvstitch.retriever import Chunk, EndpointReranker, Passage, rerank
from kvstitch.retriever.errors import RerankerError
from kvstitch.retriever.rerankers import Reranked
from tests.fakes.models import OverlapReranker
from tests.retriever.http_endpoint import Answer, endpoint


def passages(count: int) -> list[Passage]:
    return [
        Passage(Chunk(n, f"d{n}", 0, f"text {n}", "T" * (n % 2), 0, 6, 2, "r"), 1.0 - n / 100)
        for n in range(count)
    ]


@asynccontextmanager
async def reranker(url: str, **fields: Any) -> AsyncIterator[EndpointReranker]:
    client = EndpointReranker(f"{url}/rerank", **fields)
    await client.start()
    yield client
    await client.close()


def last_first(key: str, wrap: Callable[[list[Any]], Any]) -> Answer:
    """Scores rise with the number in the text; the rows come best first, as servers send them."""

    def answer(path: str, body: Any) -> tuple[int, Any]:
        texts = body.get("texts") or body["documents"]
        rows = [{"index": i, key: float(text.split()[-1])} for i, text in enumerate(texts)]
        return 200, wrap(rows[::-1])

    return answer


async def test_tei() -> None:
    with endpoint(last_first("score", list)) as served:
        async with reranker(served.url, api_key="k") as client:
            done = await rerank(client, "q", passages(5), 3, deadline_s=120)
    assert done.warning is None
    assert [hit.chunk.chunk_id for hit in done.passages] == [4, 3, 2]
    assert (done.passages[0].score, done.passages[0].rerank_score) == (4.0, 4.0)
    texts = ["text 0", "T\ntext 1", "text 2", "T\ntext 3", "text 4"]
    assert served.bodies == [{"query": "q", "texts": texts, "truncate": True}]
    assert served.keys == ["Bearer k"]


async def test_cohere_and_batches() -> None:
    with endpoint(last_first("relevance_score", lambda rows: {"results": rows})) as served:
        async with reranker(served.url, style="cohere", model="m") as client:
            done = await rerank(client, "q", passages(70), 70, deadline_s=120)
    assert [hit.chunk.chunk_id for hit in done.passages] == list(range(70))[::-1]
    assert sorted(len(body["documents"]) for body in served.bodies) == [6, 32, 32]
    assert {(body["model"], body["top_n"]) for body in served.bodies} == {("m", 32), ("m", 6)}
    assert served.keys == [None] * 3


def as_found(done: Reranked, reason: str) -> None:
    assert done.passages == passages(5)[:3]
    assert done.warning is not None and reason in done.warning
    assert "in the order of the search" in done.warning


async def test_a_late_answer_leaves_the_order() -> None:
    release = threading.Event()

    def answer(path: str, body: Any) -> tuple[int, Any]:
        release.wait(240)
        return 200, []

    with endpoint(answer) as served:
        async with reranker(served.url) as client:
            done = await rerank(client, "q", passages(5), 3, deadline_s=0.05)
            release.set()
    as_found(done, "no answer within 0.05 s")


@pytest.mark.parametrize(
    ("status", "reply", "reason"),
    [
        (503, {"error": "overloaded"}, "HTTP 503"),
        (302, {}, "HTTP 302"),
        (200, b"<html>", "cannot be read"),
        (200, {"rows": []}, "cannot be read"),
        (200, 3, "cannot be read"),
        (200, [{"index": 0, "score": 1.0}], "5 texts were sent, 1 rows came back"),
        (200, [{"index": 0, "score": 1.0}] * 5, "5 texts were sent"),
        (200, [{"index": n + 1, "score": 1.0} for n in range(5)], "5 texts were sent"),
        (200, [{"index": n, "score": None} for n in range(5)], "cannot be read"),
        (200, [{"index": n, "score": float("nan")} for n in range(5)], "not all finite"),
    ],
)
async def test_a_broken_answer_leaves_the_order(status: int, reply: Any, reason: str) -> None:
    with endpoint(lambda path, body: (status, reply)) as served:
        async with reranker(served.url) as client:
            as_found(await rerank(client, "q", passages(5), 3, deadline_s=120), reason)


async def test_nobody_there_leaves_the_order() -> None:
    with endpoint(lambda path, body: (200, [])) as served:
        pass
    async with reranker(served.url) as client:
        as_found(await rerank(client, "q", passages(5), 3, deadline_s=120), "ConnectError")
    async with reranker("no-scheme") as client:
        as_found(await rerank(client, "q", passages(5), 3, deadline_s=120), "UnsupportedProtocol")


async def test_a_failing_batch_ends_the_others() -> None:
    release = threading.Event()

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if len(body["texts"]) == 32:
            release.wait(240)
        return 500, {}

    with endpoint(answer) as served:
        async with reranker(served.url) as client:
            with pytest.raises(RerankerError, match="HTTP 500"):
                await client.scores("q", ["x"] * 40)
            release.set()


async def test_use_before_start() -> None:
    client = EndpointReranker("http://127.0.0.1:9/rerank")
    as_found(await rerank(client, "q", passages(5), 3, deadline_s=1), "start()")
    with pytest.raises(ValueError, match="style"):
        EndpointReranker("http://127.0.0.1:9", style="x")  # type: ignore[arg-type]


async def test_the_fake_counts_shared_words_and_keeps_ties() -> None:
    found = await rerank(OverlapReranker(), "Text 3?", passages(5), 5, deadline_s=120)
    assert [hit.chunk.chunk_id for hit in found.passages] == [3, 0, 1, 2, 4]
    assert [hit.score for hit in found.passages] == [1.0, 0.5, 0.5, 0.5, 0.5]
    assert await rerank(OverlapReranker(), "x", [], 5, deadline_s=120) == Reranked([])
