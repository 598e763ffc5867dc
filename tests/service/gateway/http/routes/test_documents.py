"""GET /admin/documents: found by id, title and metadata, page by page."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest

from kvstitch.client import Client
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


RUSSIAN = "Каждая чашка стоит на полке у окна, и утром её освещает солнце.".encode("cp1251")


def wait(rig: Rig, sent: Any) -> dict[str, Any]:
    assert sent.status_code == 202, sent.text
    with Client(rig.url) as client:
        return dict(client.wait(sent.json()["job_id"], timeout_s=240).raw)


def test_what_is_stored_and_what_is_not(rig: Rig) -> None:
    """Warnings stand beside the text, in the job, in the document and in a metric."""
    files = [
        ("file", ("cup.txt", RUSSIAN, "text/plain")),
        ("file", ("short.txt", "Größe".encode("latin-1"), "text/plain")),
        ("file", ("fine.md", b"# Kettle\n\nIt boils.", "text/markdown")),
    ]
    job = wait(rig, rig.http.post("/admin/precompute", files=files))
    assert job["progress"]["done"] == 2, "each file fails alone"
    assert [e["doc_id"] for e in job["errors"]] == ["short.txt"]
    assert "charset cannot be told" in job["errors"][0]["message"]
    assert job["warned"] == 1
    (warned,) = job["warnings"]
    assert warned["doc_id"] == "cup.txt"
    assert [w["code"] for w in warned["warnings"]] == ["charset_guessed"]
    assert "windows-1251" in warned["warnings"][0]["message"]

    shown = rig.http.get("/admin/documents/cup.txt/text").json()
    assert shown["text"] == RUSSIAN.decode("cp1251")
    assert shown["warnings"] == warned["warnings"]
    assert [(c["start"], c["end"]) for c in shown["chunks"]] == [(0, len(shown["text"]))]
    assert rig.http.get("/admin/documents/cup.txt").json()["warnings"] == warned["warnings"]
    assert rig.http.get("/admin/documents/fine.md").json()["warnings"] == []
    with Client(rig.url) as client:
        fine = client.get_text("fine.md")
    assert (fine.warnings, fine.chunks[0].heading) == ([], "Kettle")
    assert (
        'kvstitch_document_warnings_total{code="charset_guessed"} 1'
        in rig.http.get("/metrics").text
    )

    # The same file as UTF-8: nothing is to be said any more.
    files = [("file", ("cup.txt", RUSSIAN.decode("cp1251").encode(), "text/plain"))]
    assert wait(rig, rig.http.post("/admin/precompute", files=files))["warnings"] == []
    assert rig.http.get("/admin/documents/cup.txt/text").json()["warnings"] == []


def test_a_name_is_the_same_in_either_form(rig: Rig) -> None:
    """macOS writes a letter and its marks apart; people type one character."""
    typed = "Übersicht Köln ñandú.md"
    apart = unicodedata.normalize("NFD", typed)
    assert apart != typed
    for name in (apart, typed):
        sent = rig.http.post(
            "/admin/precompute", files=[("file", (name, b"# Dom", "text/markdown"))]
        )
        assert wait(rig, sent)["progress"]["done"] == 1
    assert found(rig) == [typed] == found(rig, q=unicodedata.normalize("NFD", "köln"))
    for name in (apart, typed):
        assert rig.http.get(f"/admin/documents/{name}").json()["doc_id"] == typed
        asked = {"query": "Dom", "documents": [name], "retrieval": "sparse"}
        assert rig.http.post("/v1/search", json=asked).status_code == 200
    assert rig.http.post("/admin/deletions", json={"doc_ids": [apart]}).json()["documents"] == 1
    assert found(rig) == []


def test_a_document_may_be_called_text(rig: Rig) -> None:
    rig.ingest([{"doc_id": "notes/text", "text": "1"}, {"doc_id": "text", "text": "2"}])
    assert rig.http.get("/admin/documents/notes/text").json()["text"] == "1"
    assert rig.http.get("/admin/documents/text").json()["text"] == "2"
    assert rig.http.get("/admin/documents/notes/text/text").json()["chunks"]
    missing = rig.http.get("/admin/documents/other/text")
    assert missing.status_code == 404 and "'other'" in missing.json()["detail"]
