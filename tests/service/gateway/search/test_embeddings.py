"""POST /v1/embeddings against a gateway with a small embedder, and with an endpoint's."""

from __future__ import annotations

import base64
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.retriever import EndpointEmbedder
from kvstitch.retriever.embedders import CountedVectors
from kvstitch.service.gateway.search.text_calls import BATCH_TEXTS, MAX_CALLS
from tests.fakes.models import HashingEmbedder
from tests.retriever.http_endpoint import endpoint
from tests.service.gateway.rig import HANG_S, Rig, asking, running, until

TEXTS = ["the red fox", "an owl at night", "the red fox"]


def embed(rig: Rig, given: Any, **fields: Any) -> httpx.Response:
    return rig.http.post("/v1/embeddings", json={"input": given, **fields})


def test_vectors_are_those_that_documents_are_searched_by(shared: Rig) -> None:
    response = embed(shared, TEXTS, model="hashing", user="me", dimensions=256)
    body = response.json()
    assert response.status_code == 200, response.text
    assert body["object"] == "list" and body["model"] == "hashing"
    assert [one["index"] for one in body["data"]] == [0, 1, 2]
    expected = HashingEmbedder().embed(TEXTS)[0].tolist()
    assert [one["embedding"] for one in body["data"]] == expected
    assert body["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert embed(shared, TEXTS[0]).json()["data"][0]["embedding"] == expected[0]


def test_base64_holds_the_same_numbers(shared: Rig) -> None:
    (one,) = embed(shared, TEXTS[:1], encoding_format="base64").json()["data"]
    numbers = struct.unpack("<256f", base64.b64decode(one["embedding"]))
    assert list(numbers) == embed(shared, TEXTS[0]).json()["data"][0]["embedding"]


def test_many_texts_are_embedded_batch_by_batch_in_order(shared: Rig) -> None:
    texts = [f"text number {n}" for n in range(2 * BATCH_TEXTS + 3)]
    rows = embed(shared, texts).json()["data"]
    assert [row["embedding"] for row in rows] == HashingEmbedder().embed(texts)[0].tolist()


@pytest.mark.parametrize(
    ("body", "status", "code", "field", "says"),
    [
        ({"input": [1, 2]}, 400, "unsupported", "input", "token ids"),
        ({"input": [[1, 2], [3]]}, 400, "unsupported", "input", "check_embedding_ctx_length"),
        ({"input": ["a", 3]}, 400, "unsupported", "input", "token ids"),
        ({"input": []}, 400, "invalid_request", "input", "input"),
        ({"input": ["a", ""]}, 400, "invalid_request", "input[1]", "is empty"),
        ({"input": ""}, 400, "invalid_request", "input[0]", "is empty"),
        ({"input": "a", "model": "ada"}, 404, "model_not_found", "model", "'hashing'"),
        ({"input": "a", "dimensions": 64}, 400, "unsupported", "dimensions", "have 256"),
        ({"input": "a", "encoding_format": "hex"}, 400, "invalid_request", "encoding_format", ""),
        ({"input": ["a"] * 2049}, 400, "invalid_request", "input", "the limit is 2048"),
        ({"input": ["a" * 600_000] * 2}, 400, "invalid_request", "input", "limit is 1048576"),
        ({}, 400, "invalid_request", "input", "missing"),
    ],
)
def test_what_cannot_be_embedded_is_named(
    shared: Rig, body: dict[str, Any], status: int, code: str, field: str, says: str
) -> None:
    response = shared.http.post("/v1/embeddings", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, field)
    assert says in error["message"]


def test_an_endpoint_says_how_many_tokens_it_read(folder: Path, data: Path) -> None:
    def answer(path: str, body: Any) -> tuple[int, Any]:
        if "fail" in body["input"]:
            return 400, {"error": "broken"}
        rows = [{"index": i, "embedding": [3.0, 4.0]} for i, _ in enumerate(body["input"])]
        return 200, {"data": rows, "usage": {"prompt_tokens": 7 * len(rows)}}

    with endpoint(answer) as model:
        embedder: Any = EndpointEmbedder(model.url, "far")
        with running(folder, data, embedder=embedder) as rig:
            body = embed(rig, ["a", "b"], model="far").json()
            assert body["usage"]["prompt_tokens"] == 14
            assert body["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
            failed = embed(rig, "fail")
            assert failed.status_code == 500
            assert "the embedder failed" in failed.json()["error"]["message"]


def test_a_call_whose_client_is_gone_is_given_up_between_batches(folder: Path, data: Path) -> None:
    done: list[int] = []
    begun = threading.Event()

    class Slow(HashingEmbedder):
        def embed(self, texts: Any) -> CountedVectors:
            if texts[0].startswith("slow"):
                begun.set()
                time.sleep(0.2)
                done.append(len(texts))
            return super().embed(texts)

    with running(folder, data, embedder=Slow()) as rig:
        texts = ["slow"] * (50 * BATCH_TEXTS)
        with asking(rig, "/v1/embeddings", {"input": texts}):
            assert begun.wait(HANG_S)
        # Another call is not held up by the rest: it would take ten seconds.
        assert rig.http.post("/v1/embeddings", json={"input": "quick"}).is_success
        assert len(done) < 50


def test_so_many_calls_at_a_time_and_answers_are_not_held_up(folder: Path, data: Path) -> None:
    release = threading.Event()

    class Stuck(HashingEmbedder):
        def embed(self, texts: Any) -> CountedVectors:
            if texts[0] == "stuck":
                assert release.wait(HANG_S)
            return super().embed(texts)

    with running(folder, data, embedder=Stuck()) as rig, ThreadPoolExecutor(MAX_CALLS) as pool:
        try:
            asked = [pool.submit(embed, rig, "stuck") for _ in range(MAX_CALLS)]
            until(lambda: rig.gateway.limiter.in_flight == MAX_CALLS, "all calls are under way")
            refused = embed(rig, "one more")
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "overloaded"
            assert rig.ask(top_k=1).status_code == 200
        finally:
            release.set()
        assert all(one.result().is_success for one in asked)
        assert embed(rig, "one more").is_success
