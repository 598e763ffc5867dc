"""Documents in every form that clients send, from the upload to the stored document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.gateway.documents.pdfs import make_pdf
from tests.service.gateway.rig import Rig

HEAD = [{"start": 0, "kind": "heading", "label": "Head"}]
PAGES = [{"start": s, "kind": "page", "label": n} for s, n in ((0, "1"), (6, "2"))]
HTML = (
    "<html><head><title>The  Kettle</title><style>p{}</style></head><body><nav>menu</nav>"
    "<h2>Parts <i>list</i></h2><p>It has a lid\n and a <b>handle</b>.</p><script>evil()</script>"
    "<ul><li>lid<li>handle</ul><table><tr><td>a<td>b</table><pre>x\n  y</pre>one<br>two"
)


@pytest.mark.parametrize(
    ("media_type", "content", "text", "title", "marks"),
    [
        ("text/markdown", b"# Head\n\nbody", "# Head\n\nbody", "Head", HEAD),
        ("text/html", b"<h1>Head</h1><p>body", "# Head\nbody", "Head", HEAD),
        ("application/pdf", make_pdf(["One.", "Two."]), "One.\n\nTwo.", "a", PAGES),
    ],
)  # fmt: skip
def test_a_file_as_the_body(
    rig: Rig, media_type: str, content: bytes, text: str, title: str, marks: list[Any]
) -> None:
    response = rig.http.post(
        "/admin/precompute",
        content=content,
        headers={"Content-Type": media_type},
        params={"doc_id": "docs/a.x", "collection": "files"},
    )
    assert response.status_code == 202, response.text
    assert rig.finished(response.json()["job_id"])["state"] == "succeeded"
    stored = rig.http.get("/admin/documents/docs/a.x", params={"collection": "files"}).json()
    assert (stored["text"], stored["title"]) == (text, title)
    assert (stored["metadata"], stored["marks"]) == ({}, marks)
    assert rig.http.get("/admin/documents/docs/a.x").status_code == 404, "another collection"


@pytest.mark.parametrize("form", [True, False])
@pytest.mark.parametrize(
    ("media_type", "content", "text"),
    [
        # Too short for a guess; and a page that says otherwise, as a copy saved elsewhere does.
        ("text/plain; charset=windows-1251", "Цапля".encode("cp1251"), "Цапля"),
        ('text/csv; charset="KOI8-R"', "Птица;Город".encode("koi8-r"), "Птица | Город"),
        (
            "text/html; charset=iso-8859-7",
            '<meta charset="windows-1252"><p>Ερωδιός'.encode("iso-8859-7"),
            "Ερωδιός",
        ),
        # Labels are often wrong, but valid UTF-8 is no accident.
        ("text/plain; charset=iso-8859-1", "Größe".encode(), "Größe"),
        ("text/markdown; charset=martian", b"# Head", "# Head"),
    ],
    ids=["text", "csv", "html", "utf-8", "unknown"],
)
def test_a_charset_that_the_sender_names(
    shared: Rig, media_type: str, content: bytes, text: str, *, form: bool
) -> None:
    if form:
        files = {"file": ("a", content, media_type)}
        response = shared.http.post("/admin/precompute", files=files)
    else:
        headers = {"Content-Type": media_type}
        response = shared.http.post(
            "/admin/precompute", content=content, headers=headers, params={"doc_id": "a"}
        )
    job = shared.finished(response.json()["job_id"])
    assert job["state"] == "succeeded", job
    stored = shared.http.get("/admin/documents/a").json()
    assert stored["text"] == text and not job["warned"]


def test_a_charset_that_is_not_the_files_is_refused(rig: Rig) -> None:
    content = "Größe der Küche".encode("cp1252")
    files = {"file": ("a.txt", content, "text/plain; charset=euc-jp")}
    job = rig.finished(rig.http.post("/admin/precompute", files=files).json()["job_id"])
    assert job["state"] == "failed" and "euc-jp, and is not" in job["errors"][0]["message"]


def test_a_form_of_several_kinds(rig: Rig) -> None:
    """Fields hold for the files behind them; a file that cannot be read fails alone."""
    boundary = "b0undary"
    parts = [
        ('name="a"; filename="first.txt"', "text/plain", b"in default"),
        ('name="collection"', "", b"manuals"),
        ('name="metadata"', "", b'{"year": 2024}'),
        ('name="b"; filename="kettle.html"', "text/html", HTML.encode()),
        ('name="c"; filename="kettle.pdf"', "application/octet-stream", make_pdf(["Lid."])),
        ('name="d"; filename="broken.pdf"', "application/pdf", b"%PDF-1.7 broken"),
    ]
    body = b""
    for name, kind, content in parts:
        head = f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n"
        body += (head + (f"Content-Type: {kind}\r\n" if kind else "") + "\r\n").encode()
        body += content + b"\r\n"
    body += f"--{boundary}--\r\n".encode()

    def trickle() -> Iterator[bytes]:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    response = rig.http.post("/admin/precompute", content=trickle(), headers=headers)
    assert response.status_code == 202, response.text
    job = rig.finished(response.json()["job_id"])
    assert job["state"] == "failed" and job["progress"]["done"] == 3
    (error,) = job["errors"]
    assert error["doc_id"] == "broken.pdf" and "not readable pdf" in error["message"]
    assert rig.http.get("/admin/documents/first.txt").json()["metadata"] == {}
    for name in ("kettle.html", "kettle.pdf"):
        stored = rig.http.get(f"/admin/documents/{name}", params={"collection": "manuals"}).json()
        assert stored["metadata"]["year"] == 2024
    listed = rig.http.get("/admin/collections").json()["collections"]
    assert [(c["collection"], c["documents"]) for c in listed] == [("default", 1), ("manuals", 2)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\ncut off", "in the middle"),
        (b"--b--\r\n", "no file"),
        (b"nonsense", "cannot be read|in the middle"),
    ],
)
def test_forms_that_are_refused(rig: Rig, body: bytes, says: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    response = rig.http.post("/admin/precompute", content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert any(part in response.json()["detail"] for part in says.split("|"))
    assert rig.http.get("/admin/jobs").json()["jobs"] == []


def test_a_bad_line_refuses_all_lines_before_it(rig: Rig) -> None:
    """More lines than are spooled at a time: what was spooled is taken back."""
    lines = [json.dumps({"doc_id": str(i), "text": "x" * 50_000}) for i in range(60)]

    def send() -> Iterator[bytes]:
        for line in lines:
            yield line.encode() + b"\n"
        yield b'{"doc_id": "last"}\n'

    headers = {"Content-Type": "application/x-ndjson"}
    response = rig.http.post("/admin/precompute", content=send(), headers=headers)
    assert response.status_code == 422 and "line 61: text" in response.json()["detail"]
    assert rig.http.get("/admin/jobs").json()["jobs"] == []
    assert rig.metric("kvstitch_documents") == 0
