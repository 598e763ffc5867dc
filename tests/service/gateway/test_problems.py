"""Every bad input is a 4xx that names the field and the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.gateway.rig import Rig


@pytest.mark.parametrize(
    ("body", "status", "field", "remedy"),
    [
        ({"fusion": {"method": "magic"}}, 422, "fusion.method", "a3, pie, question_scout, vanilla"),
        ({"fusion": {"method": "a3", "ratio": 1.5}}, 422, "fusion.ratio", "from 0 to 1"),
        ({"fusion": {"method": "a3", "ratio": "x"}}, 422, "fusion.ratio", "from 0 to 1"),
        ({"fusion": {"method": "a3", "speed": 1}}, 422, "fusion.speed", "ratio"),
        ({"fusion": {"ratio": 0.1}}, 422, "fusion.method", "missing"),
        ({"fusion": "a3"}, 422, "fusion", "dictionary"),
        ({"eviction": {"method": "magic"}}, 422, "eviction.method", "snapkv"),
        ({"eviction": {"method": "snapkv", "budget": 0}}, 422, "eviction.budget", "at least 1"),
        ({"question": "  "}, 422, "question", "send the question"),
        ({"question": ""}, 422, "question", "send the question"),
        ({"question": 5}, 422, "question", "string"),
        ({"question": "word " * 2000}, 400, "question", "shorten the question"),
        ({"question": "x" * 70_000}, 400, "question", "shorten"),
        ({"top_k": 1_000_000}, 422, "top_k", "at most 64"),
        ({"top_k": -1}, 422, "top_k", "greater than or equal to 0"),
        ({"top_k": "3"}, 422, "top_k", "integer"),
        ({"documents": ["oslo", "atlantis"]}, 404, "documents", "atlantis"),
        ({"documents": []}, 422, "documents", "leave it out"),
        ({"max_tokens": -1}, 422, "max_tokens", "greater than or equal to 0"),
        ({"temperature": -1}, 422, "temperature", "greater than or equal to 0"),
        ({"stop": ["a"] * 17}, 422, "stop", "16"),
        ({"stop": ""}, 422, "stop[0]", "at least 1 character"),
        ({"stream": "yes"}, 422, "stream", "boolean"),
        ({"tokens": 5, "n": 2}, 422, "tokens", "max_tokens"),
    ],
)
def test_generate(shared: Rig, body: dict[str, Any], status: int, field: str, remedy: str) -> None:
    for stream in (False, True):
        if "stream" in body and stream:
            continue
        response = shared.ask(**{"stream": stream, **body})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert error["param"] == field
        assert remedy in error["message"] and error["type"] == "invalid_request_error"
    assert shared.metric("kvstitch_requests_in_flight") == 0


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/admin/documents?collection=%09"),
        ("GET", "/admin/documents/oslo?collection=%20"),
        ("DELETE", "/admin/documents/oslo?collection=%20"),
        ("PUT", "/admin/pins/oslo?collection=%20"),
        ("DELETE", "/admin/pins/oslo?collection=%20"),
        ("DELETE", "/admin/collections/%20"),
        ("POST", "/admin/precompute?collection=%20"),
    ],
)
def test_a_blank_collection(shared: Rig, verb: str, path: str) -> None:
    body = None
    if verb == "POST":
        body = {"documents": [{"doc_id": "a", "text": "b", "collection": " "}]}
    response = shared.http.request(verb, path, json=body)
    assert response.status_code == 422, response.text
    assert "collection" in response.text


def test_missing_question_and_body(shared: Rig) -> None:
    response = shared.http.post("/v1/rag/generate", json={})
    assert response.status_code == 422 and response.json()["error"]["param"] == "question"
    response = shared.http.post("/v1/rag/generate")
    assert response.status_code == 422 and response.json()["error"]["param"] == "body"


@pytest.mark.parametrize("path", ["/v1/rag/generate", "/admin/precompute"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": ', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"question": "caf\xe9"}', "question is not valid UTF-8"),
        (b"\xff\xfe{}", "is not valid"),
    ],
)
def test_unreadable_json(shared: Rig, path: str, content: bytes, message: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = shared.http.post(path, content=content, headers=headers)
    assert response.status_code == 400, response.text
    found = response.json()
    assert message in (found["error"]["message"] if "error" in found else found["detail"])


@pytest.mark.parametrize(
    ("body", "field", "remedy"),
    [
        ({"documents": []}, "documents", "at least 1"),
        ({}, "documents", "missing"),
        ({"documents": [{"doc_id": "a"}]}, "documents[0].text", "missing"),
        ({"documents": [{"doc_id": "", "text": "x"}]}, "documents[0].doc_id", "at least 1"),
        ({"documents": [{"doc_id": " ", "text": "x"}]}, "documents[0].doc_id", "blank"),
        ({"documents": [{"doc_id": "a", "text": 5}]}, "documents[0].text", "string"),
        (
            {"documents": [{"doc_id": "a", "text": "x", "body": 1}]},
            "documents[0].body",
            "doc_id, text, title, metadata",
        ),
        ({"documents": [{"doc_id": "a", "text": "x"}] * 2}, "documents[1].doc_id", "once"),
        ({"documents": [{"doc_id": "a\nb", "text": "x"}]}, "documents[0].doc_id", "line break"),
        ({"documents": [{"doc_id": "a\r", "text": "x"}]}, "documents[0].doc_id", "line break"),
        ({"docs": []}, "documents", "missing"),
        ({"documents": [{"doc_id": "a", "text": "x"}], "sync": 1}, "sync", "documents"),
    ],
)
def test_precompute(shared: Rig, body: dict[str, Any], field: str, remedy: str) -> None:
    response = shared.http.post("/admin/precompute", json=body)
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["field"] == field and remedy in problem["detail"]
    assert problem["status"] == 422 and problem["instance"] == "/admin/precompute"


def test_lone_surrogate_is_not_text(shared: Rig) -> None:
    content = rb'{"documents": [{"doc_id": "a", "text": "\ud800"}]}'
    headers = {"Content-Type": "application/json"}
    response = shared.http.post("/admin/precompute", content=content, headers=headers)
    assert response.status_code == 422 and response.json()["field"] == "documents[0].text"
    content = rb'{"question": "\ud800"}'
    response = shared.http.post("/v1/rag/generate", content=content, headers=headers)
    assert response.status_code == 422 and response.json()["error"]["param"] == "question"


def test_lines_that_are_not_utf8(shared: Rig) -> None:
    """JSON is UTF-8; the charset of a file is told, or guessed with a warning."""
    latin = "café".encode("latin-1")
    lines = shared.http.post(
        "/admin/precompute",
        content=b'{"doc_id": "a", "text": "x"}\n{"doc_id": "b", "text": "' + latin + b'"}\n',
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert lines.status_code == 400 and lines.json()["field"] == "line 2"
    assert "encoded as UTF-8" in lines.json()["detail"]


def test_unknown_things_are_404(shared: Rig) -> None:
    assert "nope" in shared.http.get("/admin/jobs/nope").json()["detail"]
    for method in ("GET", "DELETE"):
        response = shared.http.request(method, "/admin/documents/nope")
        assert response.status_code == 404 and response.json()["field"] == "doc_id"
    response = shared.http.get("/v1/nothing")
    assert response.status_code == 404 and response.json()["error"]["code"] == "not_found"
    assert shared.http.get("/v1/rag/generate").status_code == 405
    assert shared.http.get("/admin/documents?limit=0").json()["field"] == "limit"


def test_body_and_media_type_limits(shared: Rig) -> None:
    big = b"x" * (shared.gateway.settings.max_body_bytes + 1)
    response = shared.http.post("/v1/rag/generate", content=big)
    assert response.status_code == 413 and response.json()["error"]["param"] == "body"

    def pieces() -> Any:  # no Content-Length
        for _ in range(len(big) // 65536 + 1):
            yield b"x" * 65536

    for path in ("/admin/precompute", "/v1/rag/generate", "/v1/chat/completions"):
        response = shared.http.post(
            path, content=pieces(), headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 413, response.text
    response = shared.http.post(
        "/admin/precompute", content=b"x", headers={"Content-Type": "video/mp4"}
    )
    assert response.status_code == 415 and "application/json" in response.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/deletions", {"filter": {"kind": {"\ud800": 1}}}),
        ("/v1/rag/generate", {"question": "Oslo?", "filter": {"kind": {"\ud800": 1}}}),
        ("/v1/rag/generate", {"question": "Oslo?", "fusion": {"method": "\ud800"}}),
        ("/v1/rag/generate", {"question": "Oslo?", "\ud800": 1}),
    ],
)
def test_half_characters_can_be_quoted(shared: Rig, path: str, body: dict[str, Any]) -> None:
    """JSON can hold what UTF-8 cannot; the answer that quotes it is a 4xx all the same."""
    headers = {"Content-Type": "application/json"}
    response = shared.http.post(path, content=json.dumps(body), headers=headers)
    assert response.status_code == 422, response.text
