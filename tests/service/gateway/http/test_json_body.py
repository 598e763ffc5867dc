"""Bodies of any shape: what they may cost, and what is counted."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from kvstitch.service.gateway.json_content import has_more_values
from kvstitch.service.gateway.schemas.fields import MAX_UNKNOWN_FIELDS
from tests.service.gateway.rig import Rig

JSON = {"Content-Type": "application/json"}
MIB = 1 << 20


def _values(content: Any) -> int:
    inner: Any = ()
    if isinstance(content, dict):
        inner = content.values()
    elif isinstance(content, list):
        inner = content
    return 1 + sum(_values(item) for item in inner)


@pytest.mark.parametrize("filler", [0, 65_500])
@pytest.mark.parametrize(
    "content",
    [
        {"a": [[], {}, ",[{"], "b": 'quoted " [,] \\'},
        ["\\", '\\"', "[[[[", ["\\\\\\"], '"'] * 20,
        {"text": "ends with a backslash \\" * 9000, "list": [1, 2, 3]},
    ],
)
def test_values_are_counted_outside_of_strings(content: Any, filler: int) -> None:
    """Also where a string, or an escape within it, lies across the parts that are counted."""
    for shift in range(40):
        body = json.dumps([" " * (filler + shift), content]).encode()
        exact = _values([" ", content])
        empty = body.count(b"[]") + body.count(b"{}")  # opening them counts for their first value
        assert not has_more_values(body, exact + empty + 5)
        assert has_more_values(body, exact - 5)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/admin/precompute", b'{"documents":[' + b"[]," * 100_000 + b"[]]}", 422),
        ("/admin/precompute", b'{"documents":[' + b"[]," * 500_000 + b"[]]}", 413),
        ("/v1/rag/generate", b'{"question":[' + b"[]," * 100_000 + b"[]]}", 422),
        ("/v1/rag/generate", b'{"question":[' + b"[]," * 500_000 + b"[]]}", 413),
        ("/v1/rag/generate", b'{"messages":[' + b"1," * 100_000 + b"1]}", 422),
        ("/v1/rag/generate", b'{"question":"a","documents":[' + b"1," * 100_000 + b"1]}", 422),
        ("/v1/completions", b'{"prompt":[' + b"{}," * 100_000 + b"{}]}", 400),
        ("/v1/chat/completions", b'{"messages":[' + b"[]," * 100_000 + b"[]]}", 400),
        ("/admin/deletions", b'{"doc_ids":[' + b"[]," * 100_000 + b"[]]}", 422),
        (
            "/v1/rag/generate",
            json.dumps({"question": "a", **{f"field{i}": 0 for i in range(50_000)}}).encode(),
            422,
        ),
        (
            "/admin/precompute",
            json.dumps({"documents": [{f"field{i}": 0 for i in range(50_000)}]}).encode(),
            422,
        ),
    ],
)
def test_a_body_costs_what_its_size_is(shared: Rig, path: str, body: bytes, status: int) -> None:
    """Every error of every element was collected: about 590 bytes for each byte of the body."""
    tracemalloc.start()
    try:
        response = shared.http.post(path, content=body, headers=JSON)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert response.status_code == status, response.text[:500]
    assert len(response.content) < 2000
    assert peak < 40 * len(body) + 4 * MIB, f"{peak / MIB:.0f} MiB"


def test_the_first_unknown_fields_are_named(shared: Rig) -> None:
    unknown = [f"field{number}" for number in range(50)]
    response = shared.ask(**dict.fromkeys(unknown, 0))
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == "field0"
    assert sum(name in error["message"] for name in unknown) >= MAX_UNKNOWN_FIELDS


def test_routes_without_documents_take_no_long_bodies(shared: Rig) -> None:
    body = b'{"question": "' + b"x" * shared.gateway.settings.max_request_bytes + b'"}'
    for path in ("/v1/rag/generate", "/v1/chat/completions", "/admin/deletions"):
        assert shared.http.post(path, content=body, headers=JSON).status_code == 413


def test_one_line_in_many_pieces(shared: Rig) -> None:
    """A long line comes in pieces, and is put together once."""
    line = json.dumps({"doc_id": "long", "text": "word " * 200_000}).encode()
    pieces = (line[start : start + 1000] for start in range(0, len(line), 1000))
    lines = {"Content-Type": "application/x-ndjson"}
    quota = shared.http.post("/admin/precompute", content=pieces, headers=lines)
    assert quota.status_code == 202, quota.text
    shared.http.delete(f"/admin/jobs/{quota.json()['job_id']}")
