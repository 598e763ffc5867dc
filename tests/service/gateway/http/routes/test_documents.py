"""GET /admin/documents: found by id, title and metadata, page by page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.gateway.rig import Rig

DOCUMENTS: list[dict[str, Any]] = [
    {"doc_id": "a/one", "title": "Zürich", "text": "1", "metadata": {"year": 2019}},
    {"doc_id": "b_two", "title": "GENÈVE", "text": "2", "metadata": {"year": 2020}},
    {"doc_id": "c%three", "title": "", "text": "3", "metadata": {"year": 2021}},
    {"doc_id": "d-four", "title": "Zug", "text": "4"},
]


def found(rig: Rig, **query: Any) -> list[str]:
    reply = rig.http.get("/admin/documents", params=query)
    assert reply.status_code == 200, reply.text
    return [document["doc_id"] for document in reply.json()["documents"]]


def test_documents_are_found_by_what_is_in_id_or_title(rig: Rig) -> None:
    rig.ingest(DOCUMENTS)
    assert found(rig) == ["a/one", "b_two", "c%three", "d-four"]
    assert found(rig, q="ZÜRI") == ["a/one"] and found(rig, q="genève") == ["b_two"]
    assert found(rig, q="Z") == ["a/one", "d-four"]
    # No character stands for others.
    assert found(rig, q="%") == ["c%three"] and found(rig, q="_") == ["b_two"]
    assert found(rig, q="'") == [] and found(rig, q="THREE") == ["c%three"]
    assert found(rig, q="z", collection="other") == []


def test_search_filter_and_pages_work_together(rig: Rig) -> None:
    rig.ingest(DOCUMENTS)
    since = json.dumps({"year": {"gte": 2020}})
    assert found(rig, filter=since) == ["b_two", "c%three"]
    assert found(rig, filter=since, q="two") == ["b_two"]
    first = rig.http.get("/admin/documents", params={"q": "z", "limit": 1}).json()
    assert [d["doc_id"] for d in first["documents"]] == ["a/one"]
    assert found(rig, q="z", limit=1, cursor=first["next_cursor"]) == ["d-four"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("{", "valid JSON"),
        ("[1]", "must be an object"),
        ("[" * 5000, "valid JSON"),
        ('{"year": {"near": 1}}', "no such operator"),
        ("x" * 9000, "at most 8192"),
    ],
)
def test_a_wrong_filter_is_named(shared: Rig, wrong: str, says: str) -> None:
    reply = shared.http.get("/admin/documents", params={"filter": wrong})
    assert reply.status_code == 422, reply.text
    assert reply.json()["field"].startswith("filter") and says in reply.json()["detail"]
