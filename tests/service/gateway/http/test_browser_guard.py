"""What the pages of other sites can make a browser send, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.gateway.rig import Rig, running

UPLOAD = "/admin/precompute?doc_id=planted"


@pytest.mark.parametrize("media_type", ["text/plain", "multipart/form-data; boundary=b"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_other_sites_write_nothing(shared: Rig, headers: dict[str, str], media_type: str) -> None:
    """A form or a fetch without preflight: the browser sends it without asking anybody."""
    before = len(shared.http.get("/admin/jobs").json()["jobs"])
    content = (
        b"--b\r\nContent-Disposition: form-data; name=f; filename=planted\r\n\r\nx\r\n--b--\r\n"
    )
    reply = shared.http.post(
        UPLOAD, content=content, headers={"Content-Type": media_type, **headers}
    )
    assert reply.status_code == 403, reply.text
    assert reply.json()["code"] == "foreign_origin" and "ALLOWED_ORIGINS" in reply.json()["detail"]
    assert shared.http.delete("/admin/documents/oslo", headers=headers).status_code == 403
    assert shared.ask(**{}).status_code == 200
    assert shared.http.get("/admin/documents/oslo").status_code == 200
    assert len(shared.http.get("/admin/jobs").json()["jobs"]) == before


def test_its_own_pages_write(shared: Rig) -> None:
    for headers in ({"Origin": shared.url}, {"Sec-Fetch-Site": "same-origin"}, {}):
        reply = shared.http.post(
            "/v1/rag/generate", json={"question": "Which capital?"}, headers=headers
        )
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.0.0.1", "localhost.evil.example"]
)
def test_another_host_is_not_answered(shared: Rig, host: str) -> None:
    """DNS rebinding: the page's own name leads here, and its Origin is its own."""
    for path in ("/admin/documents/oslo", "/v1/models", "/ui/", "/openapi.json"):
        reply = shared.http.get(path, headers={"Host": host})
        assert reply.status_code == 421, reply.text
        assert "KVSTITCH_ALLOWED_HOSTS" in reply.text and "Oslo is" not in reply.text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8000", "kv.localhost"]
)
def test_loopback_names_are_answered(shared: Rig, host: str) -> None:
    assert shared.http.get("/admin/documents/oslo", headers={"Host": host}).status_code == 200


def test_hosts_and_origins_that_are_allowed(folder: Path, data: Path) -> None:
    hosts, origins = "kv.example, 127.0.0.1", "https://app.example"
    with running(folder, data, allowed_hosts=hosts, allowed_origins=origins) as rig:
        assert rig.http.get("/v1/models", headers={"Host": "KV.example:443"}).status_code == 200
        assert rig.http.get("/v1/models", headers={"Host": "localhost"}).status_code == 421
        for origin, status in (("https://app.example", 404), ("https://other.example", 403)):
            headers = {"Host": "kv.example", "Origin": origin}
            assert rig.http.delete("/admin/documents/a", headers=headers).status_code == status


def test_no_response_may_run_anything(shared: Rig) -> None:
    for path in ("/docs", "/openapi.json", "/health/live", "/nothing", "/admin/documents/oslo"):
        reply = shared.http.get(path)
        assert "default-src 'none'" in reply.headers["content-security-policy"], path
        assert reply.headers["x-content-type-options"] == "nosniff"
    page = shared.http.get("/docs").text
    assert "POST /v1/rag/generate" in page and "<script" not in page and "https://" not in page
