"""POST /v1/rerank against a gateway with a reranker behind HTTP, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.models import OverlapReranker
from tests.retriever.http_endpoint import endpoint
from tests.service.gateway.rig import Rig, running

QUERY = "Where do owls hunt?"
TEXTS = ["Whales sing.", "Owls hunt in the wood.", "A fox hunts mice."]


@contextmanager
def with_reranker(folder: Path, data: Path, status: int = 200, **more: Any) -> Iterator[Rig]:
    """Of the style of Cohere; scores as OverlapReranker gives them."""
    model = OverlapReranker()

    def answer(path: str, body: Any) -> tuple[int, Any]:
        coroutine = model.scores(body["query"], body["documents"])
        try:
            coroutine.send(None)
        except StopIteration as done:
            rows = [{"index": i, "relevance_score": s} for i, s in enumerate(done.value)]
        if "infinite" in body["query"]:
            rows[0]["relevance_score"] = float("inf")
        return status, {"results": rows}

    with (
        endpoint(answer) as served,
        running(folder, data, reranker_url=served.url, reranker_style="cohere", **more) as rig,
    ):
        yield rig


def test_texts_come_back_best_first(folder: Path, data: Path) -> None:
    with with_reranker(folder, data, reranker_model="cross") as rig:
        body: dict[str, Any] = {"query": QUERY, "documents": TEXTS, "model": "cross"}
        whole = rig.http.post("/v1/rerank", json=body).json()
        assert [r["index"] for r in whole["results"]] == [1, 0, 2]  # equal scores: as they came
        scores = [r["relevance_score"] for r in whole["results"]]
        assert scores == [0.5, 0.0, 0.0] and whole["model"] == "cross"
        assert all(set(r) == {"index", "relevance_score"} for r in whole["results"])
        assert whole["usage"]["total_tokens"] > sum(map(len, TEXTS)) / 2  # a token per byte
        objects = [{"text": text, "id": 7} for text in TEXTS]
        asked = {**body, "documents": objects, "top_n": 1, "return_documents": True}
        best = rig.http.post("/v1/rerank", json={**asked, "max_chunks_per_doc": 3}).json()
        assert best["results"] == [
            {"index": 1, "relevance_score": 0.5, "document": {"text": TEXTS[1]}}
        ]
        other = rig.http.post("/v1/rerank", json={**body, "model": "other"})
        assert other.status_code == 404 and other.json()["error"]["param"] == "model"


def test_without_a_reranker_the_setting_is_named(shared: Rig) -> None:
    refused = shared.http.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS})
    assert refused.status_code == 409 and refused.headers["x-should-retry"] == "false"
    assert refused.json()["error"]["code"] == "no_reranker"
    assert "KVSTITCH_RERANKER_URL" in refused.json()["error"]["message"]


def test_a_reranker_that_fails_is_an_error_that_may_pass(folder: Path, data: Path) -> None:
    with with_reranker(folder, data, status=500) as rig:
        failed = rig.http.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS})
        assert failed.status_code == 503 and failed.json()["error"]["code"] == "reranker_failed"
        assert failed.headers["retry-after"] and rig.gateway.limiter.in_flight == 0


def test_scores_that_are_no_numbers_are_not_passed_on(folder: Path, data: Path) -> None:
    with with_reranker(folder, data) as rig:
        body = {"query": "infinite", "documents": TEXTS}
        failed = rig.http.post("/v1/rerank", json=body)
        assert failed.status_code == 503 and "not all finite" in failed.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({"query": " ", "documents": TEXTS}, "query", "query is empty"),
        ({"query": "x", "documents": []}, "documents", "at least 1"),
        ({"query": "x", "documents": ["a", ""]}, "documents[1]", "is empty"),
        ({"query": "x", "documents": [{"title": "a"}]}, "documents[0]", "documents[0].text"),
        ({"query": "x", "documents": ["a"] * 2049}, "documents", "the limit is 2048"),
        ({"query": "x", "documents": TEXTS, "top_n": 0}, "top_n", "top_n"),
        ({"documents": TEXTS}, "query", "missing"),
    ],
)
def test_what_is_wrong_is_named(shared: Rig, body: dict[str, Any], field: str, says: str) -> None:
    response = shared.http.post("/v1/rerank", json=body)
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"].startswith(field) and says in error["message"], error
