"""POST /v1/search, and the floor `min_score` in searches and answers, against a fake worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.service.messages.requests import Generate
from tests.fakes.models import HashingEmbedder
from tests.fakes.worker import FakeWorker
from tests.retriever.http_endpoint import endpoint
from tests.service.gateway.documents.pdfs import make_pdf
from tests.service.gateway.rig import HANG_S, Rig, running

NORWAY = "What is the capital of Norway?"


def search(rig: Rig, query: str = NORWAY, **fields: Any) -> httpx.Response:
    return rig.http.post("/v1/search", json={"query": query, **fields})


def found(rig: Rig, query: str = NORWAY, **fields: Any) -> dict[str, Any]:
    response = search(rig, query, **fields)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_a_search_finds_what_an_answer_is_given(shared: Rig, mode: str) -> None:
    answer = shared.ask(retrieval=mode, top_k=2, include_text=True).json()
    result = found(shared, retrieval=mode, top_k=2)
    assert result["retrieval"] == mode and result["collection"] == "default"
    shown = [{k: v for k, v in r.items() if k != "metadata"} for r in result["results"]]
    assert shown == [{k: c[k] for k in shown[0]} for c in answer["citations"]]
    assert result["results"][0]["doc_id"] == "oslo" and result["results"][0]["text"]
    assert (
        result["ranked_by"]
        == {
            "dense": "cosine",
            "sparse": "bm25",
            "hybrid": "meaning_and_words",
        }[mode]
    )
    assert result["warnings"] == []


def test_without_text_and_with_the_documents_that_are_named(shared: Rig) -> None:
    result = found(shared, documents=["rome", "bergen"], include_text=False, top_k=5)
    assert {r["doc_id"] for r in result["results"]} == {"rome", "bergen"}
    assert all(r["text"] is None for r in result["results"])
    assert [r["index"] for r in result["results"]] == [1, 2]


def test_a_search_needs_no_worker(rig: Rig) -> None:
    rig.ingest()
    assert rig.worker is not None
    worker: FakeWorker = rig.worker
    asked = len(worker.seen(Generate))
    assert found(rig)["results"] and len(worker.seen(Generate)) == asked
    rig.call(worker.stop)
    assert rig.http.post("/v1/search", json={"query": NORWAY}).status_code == 200


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
def test_the_floor_is_compared_with_the_score_of_the_ranking(shared: Rig, mode: str) -> None:
    """The score itself passes, a little more does not; of search and answer alike."""
    scores = [r["score"] for r in found(shared, retrieval=mode, top_k=3)["results"]]
    assert len(scores) >= 2 and scores[0] > scores[1]
    for floor, kept in ((scores[0], 1), (scores[1], scores.count(scores[1]) + 1)):
        result = found(shared, retrieval=mode, top_k=3, min_score=floor)
        assert [r["score"] for r in result["results"]] == scores[:kept]
        assert result["warnings"] == []
        answer = shared.ask(retrieval=mode, top_k=3, min_score=floor).json()
        assert [c["score"] for c in answer["citations"]] == scores[:kept]
        assert answer["warnings"] == []


def test_nothing_above_the_floor_is_said_and_the_prompt_has_no_documents(shared: Rig) -> None:
    best = found(shared, retrieval="dense")["results"][0]["score"]
    above = {"retrieval": "dense", "min_score": best + 0.01}
    result = found(shared, **above)
    assert result["results"] == []
    (warning,) = result["warnings"]
    assert warning.startswith(f"nothing was found above min_score {best + 0.01:g}: the best of 3")
    assert f"{best:.4g} (cosine)" in warning
    answer = shared.ask(**above).json()
    assert answer["citations"] == [] and answer["cache"]["documents"] == []
    assert answer["warnings"] == [f"{warning}: the answer cites nothing"]
    messages = [{"role": "user", "content": NORWAY}]
    body = {"messages": messages, "kvstitch": above}
    extension = shared.http.post("/v1/chat/completions", json=body).json()["kvstitch"]
    assert extension["citations"] == [] and extension["warnings"] == answer["warnings"]


@contextmanager
def reranked(folder: Path, data: Path, status: int = 200, **more: Any) -> Iterator[Rig]:
    """A service whose reranker likes Bergen: 9, and others less: 1 / place."""

    def scores(path: str, body: Any) -> tuple[int, Any]:
        rows = [
            {"index": i, "score": 9.0 if "Bergen" in text else 1 / (1 + i)}
            for i, text in enumerate(body["texts"])
        ]
        return status, rows

    with (
        endpoint(scores) as model,
        running(folder, data, reranker_url=model.url, rerank_deadline_s=HANG_S, **more) as rig,
    ):
        rig.ingest()
        yield rig


def test_with_a_reranker_the_floor_is_for_its_scores(folder: Path, data: Path) -> None:
    with reranked(folder, data) as rig:
        result = found(rig, rerank=True, top_k=2)
        assert result["ranked_by"] == "reranker" and result["stages"]["rerank"] > 0
        assert result["results"][0]["doc_id"] == "bergen"
        assert result["results"][0]["rerank_score"] == result["results"][0]["score"] == 9.0
        assert [r["doc_id"] for r in found(rig, rerank=True, min_score=2)["results"]] == ["bergen"]
        (warning,) = found(rig, rerank=True, min_score=10)["warnings"]
        assert "has 9 (reranker)" in warning


def test_a_floor_for_a_reranker_that_fails_is_not_applied(folder: Path, data: Path) -> None:
    with reranked(folder, data, status=500) as rig:
        result = found(rig, rerank=True, min_score=2, retrieval="dense")
        assert len(result["results"]) == 3 and result["ranked_by"] == "cosine"
        failed, floor = result["warnings"]
        assert failed.startswith("rerank: ") and floor.startswith("min_score was not applied")


@pytest.mark.parametrize(
    ("fields", "status", "field", "says"),
    [
        ({"query": " \n"}, 422, "query", "query is empty"),
        ({"query": "x" * 70_000}, 422, "query", "the limit is 65536"),
        ({"top_k": 0}, 422, "top_k", "greater than or equal to 1"),
        ({"top_k": 65}, 422, "top_k", "at most 64"),
        ({"documents": []}, 422, "documents", "documents is empty"),
        ({"documents": ["nobody"]}, 404, "documents", "no document 'nobody'"),
        ({"filter": {"a": {"near": 1}}}, 422, "filter.a.near", "near"),
        ({"min_score": "0.5"}, 422, "min_score", "min_score"),
        ({"min_score": 1.5}, 422, "min_score", "or choose retrieval dense"),
        ({"min_score": 1.1, "retrieval": "dense"}, 422, "min_score", "at most 1"),
        ({"rerank": True}, 422, "rerank", "KVSTITCH_RERANKER_URL"),
        ({"topk": 3}, 422, "topk", "known are: collection, top_k"),
        ({"question": "x"}, 422, "question", "not a known field"),
    ],
)
def test_what_is_wrong_is_named(
    shared: Rig, fields: dict[str, Any], status: int, field: str, says: str
) -> None:
    response = search(shared, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, field), response.text
    assert says in error["message"]


def test_an_unknown_collection_and_an_empty_ranking_are_told_apart(shared: Rig) -> None:
    assert "no collection 'moon'" in found(shared, collection="moon")["warnings"][0]
    assert found(shared, "😀", retrieval="sparse")["warnings"] == ["no passage was found"]


def test_equality_that_meets_a_list_says_so(rig: Rig) -> None:
    """Only where an element of the list is what was asked for."""
    documents = [
        {"doc_id": "a", "text": "The pump is old.", "metadata": {"use": {"sites": ["North", 4]}}},
        {"doc_id": "b", "text": "The pump is new.", "metadata": {"use": {"sites": "South"}}},
    ]
    job = rig.http.post("/admin/precompute", json={"documents": documents}).json()
    assert rig.finished(job["job_id"])["state"] == "succeeded"

    def warnings(where: dict[str, Any]) -> list[str]:
        said: list[str] = found(rig, "pump", filter=where)["warnings"]
        return said

    (said,) = warnings({"use.sites": "North"})
    assert "'use.sites' is a list" in said
    assert '{"contains": …}' in said
    assert "'in' does not look into" in warnings({"use.sites": {"in": ["East", 4]}})[0]
    assert warnings({"use.sites": "East"}) == ["no passage was found"]
    assert warnings({"use.sites": "South"}) == []
    assert warnings({"use.sites": {"contains": "North"}}) == []


def test_results_say_where_in_their_document_they_are(rig: Rig) -> None:
    """Metadata, and of a file the heading and the page."""
    markdown = "# Kettle\n\nIt boils.\n\n## Warranty\n\nTwo years.\n\n## Cleaning\n\nVinegar.\n"
    files: list[tuple[str, Any]] = [
        ("metadata", (None, '{"year": 2024}')),
        ("file", ("kettle.md", markdown * 3, "text/markdown")),
        ("file", ("two.pdf", make_pdf(["First page. " * 12, "Second zebra. " * 12]))),
    ]
    job = rig.http.post("/admin/precompute", files=files).json()
    assert rig.finished(job["job_id"])["state"] == "succeeded"
    results = found(rig, "warranty years", documents=["kettle.md"], top_k=9)["results"]
    assert len(results) > 1
    for result in results:
        assert result["metadata"] == {"year": 2024} and result["page"] is None
        assert result["heading"] in ("Kettle", "Warranty", "Cleaning")
    (zebra, *_) = found(rig, "zebra", documents=["two.pdf"], retrieval="sparse")["results"]
    text = rig.http.get("/admin/documents/two.pdf").json()["text"]
    second = text.index("Second")
    assert zebra["page"] == ("2" if zebra["char_start"] >= second else "1")
    assert zebra["heading"] is None


def test_a_deadline_that_passes_is_a_504(folder: Path, data: Path) -> None:
    release = threading.Event()

    class Slow(HashingEmbedder):
        def embed(self, texts: Any) -> Any:
            if "slow" in texts[0]:
                assert release.wait(HANG_S)
            return super().embed(texts)

    with running(folder, data, embedder=Slow()) as rig:
        rig.ingest()
        headers = {"X-Request-Deadline-Ms": "50"}
        reply = rig.http.post(
            "/v1/search", json={"query": "slow", "retrieval": "dense"}, headers=headers
        )
        assert reply.status_code == 504 and reply.json()["error"]["code"] == "deadline_exceeded"
        assert rig.gateway.limiter.in_flight == 0
        release.set()


def test_neighbours_stand_around_what_is_found(rig: Rig) -> None:
    sentences = [f"Pump P{n} stands in hall {n} of the harbour works." for n in range(40)]
    rig.ingest([{"doc_id": "pumps", "text": "\n\n".join(sentences)}])
    asked: dict[str, Any] = {
        "query": "Pump P20",
        "retrieval": "sparse",
        "top_k": 1,
        "documents": ["pumps"],
    }
    hit = found(rig, **asked)["results"]
    around = found(rig, **asked, neighbours=1)["results"]
    assert len(hit) == 1 and hit[0]["chunk_id"] == around[1]["chunk_id"] and len(around) == 3
    assert around[0]["char_end"] == around[1]["char_start"]
    assert around[1]["char_end"] == around[2]["char_start"]
    assert [r["sparse_rank"] for r in around] == [None, 1, None]
    # Two hits side by side share their neighbours; a document's end has none behind it.
    places = [
        r["char_start"] for r in found(rig, **{**asked, "top_k": 64}, neighbours=4)["results"]
    ]
    assert len(places) == len(set(places))
    cited = rig.ask(question="Pump P20", retrieval="sparse", top_k=1, documents=["pumps"],
                    neighbours=1).json()["citations"]  # fmt: skip
    assert [c["char_start"] for c in cited] == [r["char_start"] for r in around]
    assert search(rig, "x", neighbours=5).json()["error"]["param"] == "neighbours"
