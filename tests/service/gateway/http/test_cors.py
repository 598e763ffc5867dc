"""Pages of other origins: none may use the API, unless the operator names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.auth.keys import KeyStore
from kvstitch.service.settings import load
from tests.service.gateway.rig import Rig, running

APP, OTHER = "https://app.example", "https://other.example"
ALLOWED = "access-control-allow-origin"


def preflight(rig: Rig, origin: str, *, method: str = "POST", headers: str = "") -> httpx.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    if headers:
        asked["Access-Control-Request-Headers"] = headers
    return rig.http.options("/v1/rag/generate", headers=asked)


@pytest.fixture
def key(data: Path) -> str:
    store = KeyStore(data / "keys.sqlite3")
    store.start()
    made, _ = store.create(tenant="red")
    store.close()
    return made


@pytest.fixture
def opened(folder: Path, data: Path, key: str) -> Iterator[Rig]:
    """A service with keys that one page may use."""
    with running(folder, data, cors_origins=f"{APP}, http://localhost:5173") as rig:
        yield rig


def test_by_default_no_page_reads_anything(shared: Rig) -> None:
    for origin in (APP, "null", "http://localhost:5173"):
        assert preflight(shared, origin).status_code == 405
        assert ALLOWED not in shared.http.get("/v1/models", headers={"Origin": origin}).headers


def test_a_named_page_may_ask(opened: Rig, key: str) -> None:
    """As a browser does it: a preflight without a key, then the question with one."""
    for origin in (APP, "http://localhost:5173"):
        asked = preflight(opened, origin, headers="authorization,content-type,x-stainless-lang")
        assert asked.status_code == 200 and asked.headers[ALLOWED] == origin
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "x-stainless-lang" in asked.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in asked.headers
        assert "Origin" in asked.headers["vary"]
    headers = {"Origin": APP, "Authorization": f"Bearer {key}"}
    reply = opened.http.post("/v1/rag/generate", json={"question": "Why?"}, headers=headers)
    assert reply.status_code == 200, reply.text
    assert reply.headers[ALLOWED] == APP and "Origin" in reply.headers["vary"]
    assert "X-Request-Id" in reply.headers["access-control-expose-headers"]
    streamed = opened.http.post(
        "/v1/rag/generate", json={"question": "Why?", "stream": True}, headers=headers
    )
    assert "event: done" in streamed.text and streamed.headers[ALLOWED] == APP


def test_keys_are_still_asked_for(opened: Rig) -> None:
    """And the page can read what was wrong."""
    for headers in ({}, {"Authorization": "Bearer kvs_wrong_key"}):
        reply = opened.http.post(
            "/v1/rag/generate", json={"question": "Why?"}, headers={"Origin": APP, **headers}
        )
        assert reply.status_code == 401 and reply.headers[ALLOWED] == APP
        assert reply.json()["error"]["code"] == "invalid_api_key"


def test_others_may_not(opened: Rig, key: str) -> None:
    others = ("http://app.example", "https://app.example:8443", "https://app.example.evil")
    for origin in (OTHER, "null", *others):
        asked = preflight(opened, origin)
        assert asked.status_code == 400 and ALLOWED not in asked.headers
        headers = {"Origin": origin, "Authorization": f"Bearer {key}"}
        assert ALLOWED not in opened.http.get("/v1/models", headers=headers).headers
        written = opened.http.post("/v1/rag/generate", json={"question": "Why?"}, headers=headers)
        assert written.status_code == 403, origin
        assert written.json()["error"]["code"] == "foreign_origin"


def test_everybody_means_without_credentials(folder: Path, data: Path) -> None:
    with running(folder, data, cors_origins="*") as rig:
        asked = preflight(rig, OTHER, method="DELETE", headers="authorization")
        assert asked.status_code == 200 and asked.headers[ALLOWED] == "*"
        reply = rig.http.delete("/admin/documents/nobody", headers={"Origin": OTHER})
        assert reply.status_code == 404 and reply.headers[ALLOWED] == "*"
        for answer in (asked, reply):
            assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "wrong", ["app.example", "https://app.example/", "https://a.b/c", "https://"]
)
def test_what_is_no_origin_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=r"KVSTITCH_CORS_ORIGINS.*scheme://host"):
        load(cors_origins=f"https://fine.example,{wrong}")
