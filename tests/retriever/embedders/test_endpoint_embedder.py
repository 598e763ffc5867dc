"""Embeddings over real sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvstitch.retriever import Document, EndpointEmbedder
from kvstitch.retriever.embedders import space_of
from kvstitch.retriever.errors import (
    EmbedderError,
    EmbedderMismatch,
    EmbedderNotStarted,
    EmbedderUnsupported,
)
from tests.fakes.models import HashingEmbedder
from tests.retriever.conftest import OpenRetriever
from tests.retriever.http_endpoint import endpoint

FAKE = HashingEmbedder(16)


def embeddings(path: str, body: Any) -> tuple[int, Any]:
    """An answer in OpenAI's format, with rows in any order and vectors of any length."""
    assert path == "/v1/embeddings"
    vectors = (3.0 * FAKE.embed(body["input"])[0]).tolist()
    rows = [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    return 200, {"data": rows[::-1], "model": body["model"]}


def test_vectors_are_the_models_scaled_to_one() -> None:
    texts = [f"text number {n}" for n in range(70)]
    with endpoint(embeddings) as served:
        embedder = EndpointEmbedder(f"{served.url}/v1/", "m", api_key="k")
        embedder.start()
        embedder.start()
        vectors = embedder.embed(texts)[0]
        assert embedder.embed([])[0].shape == (0, 16)
        embedder.close()
    np.testing.assert_allclose(vectors, FAKE.embed(texts)[0], atol=1e-6)
    assert vectors.dtype == np.float32
    assert [len(body["input"]) for body in served.bodies] == [1, 32, 32, 6]
    assert set(served.keys) == {"Bearer k"}
    with pytest.raises(EmbedderNotStarted):
        embedder.embed(["x"])


def test_it_serves_a_retriever_and_another_revision_is_refused(
    open_retriever: OpenRetriever,
) -> None:
    with endpoint(embeddings) as served:
        url = f"{served.url}/v1"
        retriever = open_retriever(EndpointEmbedder(url, "m", revision="1"))
        retriever.ingest([Document("fox", "the red fox"), Document("sea", "whales sing")])
        assert retriever.search("red fox", 1)[0].chunk.doc_id == "fox"
        retriever.close()
        for other in (EndpointEmbedder(url, "m", revision="2"), EndpointEmbedder(url, "n")):
            with pytest.raises(EmbedderMismatch):
                open_retriever(other)
        assert len(open_retriever(EndpointEmbedder(url, "m", revision="1")).search("fox", 9)) == 2


def test_what_may_pass_is_tried_again() -> None:
    refusals = [503, 429]

    def answer(path: str, body: Any) -> tuple[int, Any]:
        return (refusals.pop(), {}) if refusals else embeddings(path, body)

    with endpoint(answer) as served:
        embedder = EndpointEmbedder(f"{served.url}/v1", "m")
        embedder.start()
        assert space_of(embedder).dim == 16
        embedder.close()
    assert len(served.bodies) == 3


@pytest.mark.parametrize(
    ("status", "reply", "reason"),
    [
        (401, {"error": "no key"}, "HTTP 401.*no key"),
        (200, b"<html>", "no JSON"),
        (200, {"rows": []}, "cannot be read"),
        (200, {"data": []}, "1 texts were sent, 0 rows came back"),
        (200, {"data": [{"index": 1, "embedding": [1.0]}]}, "cannot be read"),
        (200, {"data": [{"index": 0, "embedding": [0.0, 0.0]}]}, "zero or not finite"),
        (200, {"data": [{"index": 0, "embedding": [float("nan")]}]}, "zero or not finite"),
        (200, {"data": [{"index": 0, "embedding": "AAAA"}]}, "cannot be read"),
    ],
)
def test_broken_answers_are_typed_errors(status: int, reply: Any, reason: str) -> None:
    with endpoint(lambda path, body: (status, reply)) as served:
        embedder = EndpointEmbedder(served.url, "m")
        with pytest.raises(EmbedderError, match=reason):
            embedder.start()
        with pytest.raises(EmbedderNotStarted):
            space_of(embedder)
    assert len(served.bodies) == 1  # trying again would not help


def test_vectors_of_another_size_are_refused() -> None:
    def answer(path: str, body: Any) -> tuple[int, Any]:
        size = 2 if body["input"] == ["dimension"] else 3
        return 200, {"data": [{"index": 0, "embedding": [1.0] * size}]}

    with endpoint(answer) as served:
        embedder = EndpointEmbedder(served.url, "m")
        embedder.start()
        with pytest.raises(EmbedderError, match="3 dimensions, 2 before"):
            embedder.embed(["x"])
        embedder.close()


def test_nobody_there() -> None:
    with endpoint(embeddings) as served:
        pass
    with pytest.raises(EmbedderError, match="ConnectError"):
        EndpointEmbedder(served.url, "m").start()
    with pytest.raises(EmbedderUnsupported, match="no URL"):
        EndpointEmbedder("here", "m").start()
