"""Requests as user interfaces and tools send them; none of them may be refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.gateway.http.routes.test_openai import frames
from tests.service.gateway.rig import Rig, events

FILE = Path(__file__).parents[4] / "data" / "openai_clients.jsonl"
RECORDS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def names() -> Iterator[str]:
    for record in RECORDS:
        yield f"{record['client']}: {record['what']}"


@pytest.mark.parametrize("record", RECORDS, ids=names())
def test_a_client_s_request_is_answered(shared: Rig, record: dict[str, Any]) -> None:
    body = record.get("body")
    path = record["path"]
    if body is None:
        listed = shared.http.get(path).json()
        assert listed["object"] == "list" and listed["data"][0]["object"] == "model"
        return
    response = shared.http.post(path, json=body)
    assert response.status_code == 200, response.text
    if path == "/v1/responses":
        with shared.http.stream("POST", path, json=body) as stream:
            last = [name for name, _ in events(stream)][-1]
            assert last in ("response.completed", "response.incomplete")
        return
    if not body.get("stream"):
        found = response.json()
        assert all(choice["finish_reason"] for choice in found["choices"])
        assert found["usage"]["total_tokens"] > 0
        warned(found["kvstitch"]["warnings"], body)
        return
    *chunks, done = frames(response.text)
    assert done == "[DONE]"
    ends = [c for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    assert len(ends) == 1
    warned(ends[0]["kvstitch"]["warnings"], body)
    if body.get("stream_options", {}).get("include_usage"):
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0


def warned(warnings: list[str], body: dict[str, Any]) -> None:
    """Only what has no effect is named, and only if it was sent."""
    for text in warnings:
        name, found, _ = text.partition(" has no effect: ")
        assert not found or name.split("[")[0].split(".")[0] in body, text
    assert ("user" in body) == any(text.startswith("user has no effect") for text in warnings)
