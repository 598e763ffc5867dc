"""Bad input is a 4xx that names the field and the remedy, and costs the service nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.e2e.service import Service

GENERATE = "/v1/rag/generate"
PRECOMPUTE = "/admin/precompute"
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Bad:
    """A request, the status it gets, the field that is named and words of the remedy."""

    name: str
    status: int
    field: str | None
    remedy: tuple[str, ...]
    path: str = GENERATE
    method: str = "POST"
    json: Any = None
    content: bytes | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=lambda: dict(JSON))


def generate(name: str, status: int, named: str, *remedy: str, **body: Any) -> Bad:
    return Bad(name, status, named, remedy, json={"question": "Which colour is it?"} | body)


def ingest(name: str, status: int, named: str, *remedy: str, json: Any) -> Bad:
    return Bad(name, status, named, remedy, path=PRECOMPUTE, json=json)


LATIN_1 = '{"question": "Où est la gare?"}'.encode("latin-1")
LATIN_1_DOCUMENT = '{"documents": [{"doc_id": "gare", "text": "Où?"}]}'.encode("latin-1")
CASES = [
    generate("unknown fusion", 422, "fusion.method", "a3", "pie", fusion={"method": "magic"}),
    generate("unknown eviction", 422, "eviction.method", "snapkv", eviction={"method": "magic"}),
    generate("ratio above", 422, "fusion.ratio", "1", fusion={"method": "a3", "ratio": 1.5}),
    generate("ratio below", 422, "fusion.ratio", "0", fusion={"method": "a3", "ratio": -0.1}),
    generate("ratio a text", 422, "fusion.ratio", fusion={"method": "a3", "ratio": "much"}),
    generate("misspelt parameter", 422, "fusion.ratoi", "ratio",
             fusion={"method": "a3", "ratoi": 1}),
    generate("no method", 422, "fusion.method", "required", fusion={"ratio": 0.1}),
    generate("unknown field", 422, "topk", "top_k", topk=3),
    generate("empty question", 422, "question", "send", question=""),
    generate("blank question", 422, "question", "send", question=" \n\t "),
    generate("no text", 422, "question", "string", question=7),
    generate("over the context", 400, "question", "shorten", question="Which colour? " * 2000),
    generate("endless question", 400, "question", "shorten", question="a" * 70_000),
    generate("too many passages", 400, "top_k", "lower top_k", top_k=12,
             question="Which colour? " * 150),
    generate("huge top_k", 422, "top_k", "at most", top_k=10**9),
    generate("negative top_k", 422, "top_k", "greater than or equal to 0", top_k=-1),
    generate("negative max_tokens", 422, "max_tokens", "greater", max_tokens=-5),
    generate("negative max_tokens", 422, "max_tokens", "greater", max_tokens=-1),
    generate("negative temperature", 422, "temperature", "greater", temperature=-1),
    generate("unknown document", 404, "documents", "GET /admin/documents", documents=["nobody"]),
    generate("no documents", 422, "documents", "leave it out", documents=[]),
    Bad("malformed JSON", 400, "body", ("JSON",), content=b'{"question": "why'),
    Bad("not UTF-8", 400, "question", ("UTF-8",), content=LATIN_1),
    Bad("a list", 422, "body", (), json=["Which colour?"]),
    Bad("no body", 422, "body", ("required",)),
    Bad("unknown document to read", 404, "doc_id", ("GET /admin/documents",),
        "/admin/documents/nobody", "GET"),
    Bad("unknown document to delete", 404, "doc_id", ("GET /admin/documents",),
        "/admin/documents/nobody", "DELETE"),
    Bad("unknown job", 404, "job_id", ("GET /admin/jobs",), "/admin/jobs/nothing",
        "GET"),
    Bad("huge page", 422, "limit", ("1000",), "/admin/documents?limit=99999", "GET"),
    ingest("no documents at all", 422, "documents", "at least 1", json={"documents": []}),
    ingest("documents missing", 422, "documents", "required", json={}),
    ingest("no doc_id", 422, "documents[0].doc_id", "required",
           json={"documents": [{"text": "a"}]}),
    ingest("no text", 422, "documents[0].text", "required", json={"documents": [{"doc_id": "a"}]}),
    ingest("empty doc_id", 422, "documents[0].doc_id", "at least 1",
           json={"documents": [{"doc_id": "", "text": "a"}]}),
    ingest("second one wrong", 422, "documents[1].body", "doc_id, text",
           json={"documents": [{"doc_id": "a", "text": "a"},
                               {"doc_id": "b", "text": "b", "body": 1}]}),
    Bad("document not UTF-8", 400, "documents[0].text", ("UTF-8",), PRECOMPUTE,
        content=LATIN_1_DOCUMENT),
    Bad("documents malformed", 400, "body", ("JSON",), PRECOMPUTE, content=b'{"documents": [}'),
    Bad("text without name", 422, "doc_id", ("doc_id=",), PRECOMPUTE, content=b"Some text.",
        headers={"content-type": "text/plain"}),
    Bad("a film", 415, None, ("application/json",), PRECOMPUTE, content=b"\0\0\0\x18ftyp",
        headers={"content-type": "video/mp4"}),
]  # fmt: skip
STREAMED = [
    replace(bad, name=f"{bad.name}, streamed", json={**bad.json, "stream": True})
    for bad in CASES
    if bad.path == GENERATE and isinstance(bad.json, dict)
]


@pytest.mark.parametrize("bad", [*CASES, *STREAMED], ids=lambda bad: bad.name)
def test_it_is_named_and_the_service_goes_on(service: Service, bad: Bad) -> None:
    """Status, field and remedy are in the body, asked as stream or not, and the next request of
    the same connection is answered."""
    documents = service.metrics().value("kvstitch_documents")
    reply = service.http.request(
        bad.method, bad.path, json=bad.json, content=bad.content, headers=bad.headers
    )
    assert reply.status_code == bad.status, reply.text
    message, named = told(reply.json(), bad.path)
    assert named == bad.field, reply.text
    for words in bad.remedy:
        assert words in message, message
    assert "Traceback" not in reply.text
    assert service.ask("Which colour is it?", top_k=1, max_tokens=1)["finish_reason"] == "length"
    assert service.metrics().value("kvstitch_documents") == documents


def told(body: dict[str, Any], path: str) -> tuple[str, str | None]:
    """(message, field): OpenAI's error object under /v1, RFC 9457 elsewhere."""
    if path.startswith("/v1/"):
        error = body["error"]
        assert error["type"] == "invalid_request_error"
        assert error["code"]
        return error["message"], error["param"]
    assert body["title"] and body["code"]
    return body["detail"], body.get("field")


def test_max_tokens_beyond_the_context_is_lowered_and_said(service: Service) -> None:
    """Not an error: the answer has as much as fits, and a warning says so."""
    answer = service.ask("Which colour is it?", top_k=0, max_tokens=5000, stop=[" ", "a", "e"])
    assert any("max_tokens" in warning for warning in answer["warnings"])
    assert answer["usage"]["completion_tokens"] < 5000
