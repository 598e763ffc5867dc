"""How bodies may come: media types, gzip within a bound; and HEAD."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.gateway.http.middleware import PIECE_BYTES
from tests.service.gateway.rig import DOCUMENTS, Rig, running

GENERATE = "/v1/rag/generate"
BODY = json.dumps({"question": "What is the capital of Norway?"}).encode()
GZIP = {"content-type": "application/json", "content-encoding": "gzip"}


@pytest.mark.parametrize("path", [GENERATE, "/v1/chat/completions", "/v1/embeddings", "/v1/search"])
@pytest.mark.parametrize(
    "sent",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_another_type_is_told_what_to_send(shared: Rig, path: str, sent: str) -> None:
    response = shared.http.post(path, content=BODY, headers={"content-type": sent} if sent else {})
    error = response.json()["error"]
    assert response.status_code == 415 and error["code"] == "unsupported_media_type"
    assert "send Content-Type: application/json" in error["message"], error


@pytest.mark.parametrize("sent", ["application/json", "Application/JSON; charset=utf-8",
                                  "application/vnd.api+json"])  # fmt: skip
def test_json_by_any_of_its_names_is_read(shared: Rig, sent: str) -> None:
    response = shared.http.post(GENERATE, content=BODY, headers={"content-type": sent})
    assert response.status_code == 200, response.text


def test_gzip_is_read_everywhere(rig: Rig) -> None:
    documents = json.dumps({"documents": DOCUMENTS}).encode()
    lines = b"\n".join(json.dumps(each).encode() for each in DOCUMENTS)
    for kind, body in (("application/json", documents), ("application/x-ndjson", lines)):
        # Two gzip files one after another are one, and bodies come in pieces.
        packed = gzip.compress(body[:50]) + gzip.compress(body[50:])
        pieces = (packed[n : n + 7] for n in range(0, len(packed), 7))
        headers = {**GZIP, "content-type": kind}
        sent = rig.http.post("/admin/precompute", content=pieces, headers=headers)
        assert sent.status_code == 202, sent.text
        assert rig.finished(sent.json()["job_id"])["state"] == "succeeded"
    headers = {**GZIP, "content-encoding": "x-gzip"}
    asked = rig.http.post(GENERATE, content=gzip.compress(BODY), headers=headers)
    assert asked.json()["citations"][0]["doc_id"] == "oslo", asked.text
    long = json.dumps({"question": "Where? " + "\n" * 3 * PIECE_BYTES}).encode()
    assert rig.http.post(GENERATE, content=gzip.compress(long), headers=GZIP).json()["error"][
        "code"] == "prompt_too_long"  # fmt: skip


@pytest.mark.parametrize(
    ("body", "coding", "status", "says"),
    [
        (BODY, "gzip", 400, "is none"),
        (gzip.compress(BODY)[:-9], "gzip", 400, "ends too soon"),
        (gzip.compress(BODY) + b"more", "gzip", 400, "is none"),
        (zlib.compress(BODY), "deflate", 415, "or gzip"),
        (BODY, "br", 415, "or gzip"),
        (gzip.compress(BODY), "gzip, gzip", 415, "or gzip"),
    ],
    ids=["not packed", "cut off", "more behind", "deflate", "brotli", "twice"],  # gzip has the time
)
def test_what_cannot_be_unpacked_is_refused(
    shared: Rig, body: bytes, coding: str, status: int, says: str
) -> None:
    headers = {**GZIP, "content-encoding": coding}
    response = shared.http.post(GENERATE, content=body, headers=headers)
    assert response.status_code == status and says in response.json()["error"]["message"]


def test_a_bomb_is_cut_off_at_the_limit_of_bodies(folder: Path, data: Path) -> None:
    bomb = gzip.compress(gzip.compress(b"\0" * 50_000_000, 9), 9)
    nested = gzip.decompress(bomb)  # 50 MB of zeros in 50 KB
    with running(folder, data, max_request_bytes=1_000_000, max_body_bytes=2_000_000) as rig:
        tracemalloc.start()
        for path in (GENERATE, "/admin/precompute"):
            response = rig.http.post(path, content=nested, headers=GZIP)
            assert response.status_code == 413, response.text
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000_000
        assert rig.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/health", "/health/live", "/health/ready", "/v1/models", "/v1/models/model", "/metrics",
     "/status", "/openapi.json", "/docs", "/ui/", "/admin/documents"],
)  # fmt: skip
def test_head_says_what_get_would(shared: Rig, path: str) -> None:
    for _ in range(2):  # the connection is still in order after the first
        asked = shared.http.head(path)
        assert asked.status_code == 200 and asked.content == b""
    got: dict[str, Any] = dict(shared.http.get(path).headers)
    assert asked.headers["content-type"] == got["content-type"]
    assert int(asked.headers["content-length"]) > 0


def test_head_of_what_is_not_there_or_takes_no_get(shared: Rig) -> None:
    assert shared.http.head("/v1/models/nobody").status_code == 404
    assert shared.http.head("/nowhere").status_code == 404
    assert shared.http.head(GENERATE).status_code == 405
