"""API keys over HTTP: who gets in, with what, and until when; and the rates of keys and tenants."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.cli import main
from kvstitch.service.errors import InvalidSetting, QuotaExceeded
from kvstitch.service.gateway.auth.keys import KeyStore
from kvstitch.service.gateway.auth.quotas import Limits, Quotas
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.messages.requests import Generate, Prefetch
from kvstitch.service.settings import load
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import Rig, running, until

Create = Callable[..., str]
# Where an empty body is refused before the key's scopes are looked at.
BODIES: dict[str, Any] = {
    "/v1/search": {"query": "x"},
    "/v1/rerank": {"query": "x", "documents": ["a"]},
    "/v1/embeddings": {"input": "a"},
}


@pytest.fixture
def keyed(folder: Path, data: Path, create: Create) -> Iterator[Rig]:
    """A service that has one key, which the rig's own client uses."""
    key = create()
    with running(folder, data) as rig:
        rig.http.headers["Authorization"] = f"Bearer {key}"
        yield rig


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_service_without_keys_is_open_until_the_first_one(rig: Rig, create: Create) -> None:
    assert rig.http.get("/v1/models").status_code == 200
    key = create()
    refused = rig.http.get("/v1/models")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert "kvstitch keys create" in refused.json()["error"]["message"]
    assert rig.http.get("/v1/models", headers=with_key(key)).status_code == 200
    assert rig.http.get("/v1/models", headers={"x-api-key": key}).status_code == 200
    assert rig.http.get("/health/ready").status_code == 200, "probes have no key"


def test_errors_have_the_form_of_their_route(keyed: Rig) -> None:
    for headers in ({"Authorization": "Bearer kvs_wrong"}, {"Authorization": ""}):
        openai = keyed.http.post("/v1/rag/generate", json={"question": "x"}, headers=headers)
        assert openai.status_code == 401
        assert openai.json()["error"]["type"] == "authentication_error"
        problem = keyed.http.get("/admin/documents", headers=headers)
        assert problem.status_code == 401
        assert problem.headers["content-type"] == "application/problem+json"
        assert problem.json()["status"] == 401 and problem.json()["code"] == "invalid_api_key"


@pytest.mark.parametrize("change", ["last", "id", "cut"])
def test_a_key_that_is_nearly_right_is_wrong(keyed: Rig, create: Create, change: str) -> None:
    key = create()
    wrong = {
        "last": key[:-1] + ("0" if key[-1] != "0" else "1"),
        "id": key[:4] + "0" * 16 + key[20:],
        "cut": key[:-1],
    }[change]
    assert keyed.http.get("/v1/models", headers=with_key(key)).status_code == 200
    assert keyed.http.get("/v1/models", headers=with_key(wrong)).status_code == 401


@pytest.mark.parametrize(
    ("scope", "method", "path"),
    [
        ("generate", "GET", "/v1/models"),
        ("generate", "POST", "/v1/rag/generate"),
        ("generate", "POST", "/v1/search"),
        ("generate", "POST", "/v1/rerank"),
        ("generate", "POST", "/v1/embeddings"),
        ("ingest", "POST", "/admin/precompute"),
        ("ingest", "GET", "/admin/jobs/none"),
        ("admin", "GET", "/admin/documents"),
        ("admin", "DELETE", "/admin/documents/none"),
        ("metrics", "GET", "/metrics"),
        ("metrics", "GET", "/status"),
    ],
)
def test_every_route_asks_for_its_scope_and_no_other(
    keyed: Rig, create: Create, scope: str, method: str, path: str
) -> None:
    body = {"json": BODIES.get(path, {})} if method == "POST" else {}
    for given in ("generate", "ingest", "admin", "metrics"):
        key = create("--scope", given)
        reply = keyed.http.request(method, path, headers=with_key(key), **body)
        if given == scope:
            assert reply.status_code not in (401, 403), reply.text
        else:
            assert reply.status_code == 403
            assert f"scope '{scope}'" in reply.text


def test_a_revoked_key_is_refused_at_once(
    keyed: Rig, create: Create, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = create("--name", "short-lived")
    headers = with_key(key)
    assert keyed.http.get("/v1/models", headers=headers).status_code == 200
    key_id = key.split("_")[1]
    assert main(["keys", "revoke", key_id, "--data-dir", str(data)]) == 0
    assert keyed.http.get("/v1/models", headers=headers).status_code == 401
    capsys.readouterr()
    main(["keys", "list", "--json", "--data-dir", str(data)])
    listed = {k["key_id"]: k for k in json.loads(capsys.readouterr().out)}
    assert listed[key_id]["state"] == "revoked" and listed[key_id]["name"] == "short-lived"


def test_revoking_the_last_key_does_not_open_the_service(
    rig: Rig, create: Create, data: Path
) -> None:
    key_id = create().split("_")[1]
    assert main(["keys", "revoke", key_id, "--data-dir", str(data)]) == 0
    assert rig.http.get("/v1/models").status_code == 401


def test_an_expired_key_is_refused(keyed: Rig, data: Path) -> None:
    store = KeyStore(data / "keys.sqlite3")
    store.start()
    key, _ = store.create(expires=time.time() - 1)
    later, _ = store.create(expires=time.time() + 1000)
    store.close()
    assert keyed.http.get("/v1/models", headers=with_key(key)).status_code == 401
    assert keyed.http.get("/v1/models", headers=with_key(later)).status_code == 200


def test_the_store_holds_no_secret(data: Path, create: Create) -> None:
    secret = create().split("_")[2]
    for file in data.glob("keys.sqlite3*"):
        content = file.read_bytes()
        assert secret.encode() not in content and bytes.fromhex(secret) not in content
    assert (data / "keys.sqlite3").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("host", "settings", "keys", "refused"),
    [
        ("127.0.0.1", {}, False, False),
        ("::1", {}, False, False),
        ("localhost", {}, False, False),
        ("0.0.0.0", {}, False, True),
        ("10.1.2.3", {}, False, True),
        ("0.0.0.0", {}, True, False),
        ("0.0.0.0", {"allow_anonymous": True}, False, False),
    ],
)
async def test_strangers_are_kept_out_by_default(
    folder: Path,
    data: Path,
    create: Create,
    host: str,
    settings: dict[str, Any],
    keys: bool,
    refused: bool,
) -> None:
    if keys:
        create()
    gateway = Gateway(load(model=str(folder), data_dir=data, host=host, **settings), folder)
    try:
        if refused:
            with pytest.raises(InvalidSetting, match=r"keys create.*KVSTITCH_ALLOW_ANONYMOUS"):
                gateway.claim()
        else:
            gateway.claim()
    finally:
        await gateway.close()


def test_with_anonymous_allowed_keys_still_name_their_tenant(
    folder: Path, data: Path, create: Create
) -> None:
    key = create("--tenant", "red")
    with running(folder, data, allow_anonymous=True) as rig:
        worker = rig.worker
        assert isinstance(worker, FakeWorker)
        assert rig.ask(top_k=0).status_code == 200
        assert rig.http.get("/v1/models", headers=with_key("sk-anything")).status_code == 200
        assert rig.http.get("/v1/models", headers=with_key("kvs_wrong")).status_code == 401
        body = {"question": "x", "top_k": 0}
        reply = rig.http.post("/v1/rag/generate", json=body, headers=with_key(key))
        assert reply.status_code == 200
        assert [m.tenant for m in worker.received if isinstance(m, Generate)] == ["", "red"]
        assert {m.tenant for m in worker.received if isinstance(m, Prefetch)} <= {"", "red"}


def test_requests_per_minute_of_a_key(keyed: Rig, create: Create) -> None:
    key = with_key(create("--requests-per-minute", "2"))
    body = {"question": "x", "top_k": 0, "max_tokens": 1}
    codes = [
        keyed.http.post("/v1/rag/generate", json=body, headers=key).status_code for _ in range(2)
    ]
    assert codes == [200, 200]
    refused = keyed.http.post("/v1/rag/generate", json=body, headers=key)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["param"] == "requests_per_minute"
    assert keyed.http.get("/v1/models", headers=key).status_code == 200, "reading is not counted"
    assert keyed.ask(top_k=0).status_code == 200, "another key is not held up"


def test_tokens_per_minute_of_a_key(keyed: Rig, create: Create) -> None:
    """The first answer overdraws, the second is refused until the credit is back."""
    key = with_key(create("--tokens-per-minute", "20"))
    body = {"question": "x" * 40, "top_k": 0, "max_tokens": 4}
    assert keyed.http.post("/v1/rag/generate", json=body, headers=key).status_code == 200
    refused = keyed.http.post("/v1/rag/generate", json=body, headers=key)
    assert refused.status_code == 429
    assert refused.json()["error"]["param"] == "tokens_per_minute"
    assert int(refused.headers["retry-after"]) > 60, "more than a minute's worth was used"


def test_tokens_that_are_embedded_count(keyed: Rig, create: Create) -> None:
    key = with_key(create("--tokens-per-minute", "20"))
    body = {"input": ["a word " * 10, "another " * 15]}
    assert keyed.http.post("/v1/embeddings", json=body, headers=key).status_code == 200
    refused = keyed.http.post("/v1/search", json={"query": "Oslo"}, headers=key)
    assert refused.status_code == 429
    assert refused.json()["error"]["param"] == "tokens_per_minute"


def test_a_search_sees_the_documents_of_its_tenant_only(keyed: Rig, create: Create) -> None:
    red, blue = (with_key(create("--tenant", tenant)) for tenant in ("red", "blue"))
    document = {"doc_id": "oslo", "text": "Oslo is red."}
    job = keyed.http.post("/admin/precompute", json={"documents": [document]}, headers=red).json()
    path = f"/admin/jobs/{job['job_id']}"
    until(lambda: keyed.http.get(path, headers=red).json()["state"] == "succeeded", "ingested")
    body = {"query": "Oslo"}
    (found,) = keyed.http.post("/v1/search", json=body, headers=red).json()["results"]
    assert found["text"] == "Oslo is red."
    for others in (blue, {}):
        answer = keyed.http.post("/v1/search", json=body, headers=others).json()
        assert answer["results"] == [] and answer["warnings"] == ["there are no documents"]
    named = keyed.http.post("/v1/search", json={**body, "documents": ["oslo"]}, headers=blue)
    assert named.status_code == 404


async def test_rates_of_key_and_tenant_and_of_nobody_else() -> None:
    quotas = Quotas(Limits(requests_per_minute=3))
    own = Limits(requests_per_minute=2)
    await quotas.enter("red", "k1", own)
    await quotas.enter("red", "k1", own)
    with pytest.raises(QuotaExceeded, match="requests_per_minute of this key is 2") as error:
        await quotas.enter("red", "k1", own)
    assert error.value.retry_after_s == pytest.approx(30.0, abs=1)
    await quotas.enter("red", "k2", own)
    with pytest.raises(QuotaExceeded, match="of this tenant"):
        await quotas.enter("red", "k2", own)
    await quotas.enter("blue", "k3", own)
    for _ in range(5):
        await quotas.enter("red", "", Limits())  # who has no key is not counted


def test_one_key_may_have_so_many_answers_in_flight(
    folder: Path, data: Path, create: Create
) -> None:
    """`max_in_flight_per_key`: the next is refused at once, and other keys are served."""
    greedy, other = with_key(create()), with_key(create())
    asked = {"question": "Oslo?", "stream": True, "top_k": 0}
    with running(folder, data, max_in_flight_per_key=2) as rig, ExitStack() as stack:
        assert rig.worker is not None
        rig.worker.prefill_delay_s = 60  # ended by their disconnects
        for _ in range(2):
            call = rig.http.stream("POST", "/v1/rag/generate", json=asked, headers=greedy)
            stack.enter_context(call)
        refused = rig.http.post("/v1/rag/generate", json=asked, headers=greedy)
        assert refused.status_code == 429 and "Retry-After" in refused.headers
        assert refused.json()["error"]["code"] == "quota_exceeded"
        rig.worker.prefill_delay_s = 0
        assert rig.http.post("/v1/rag/generate", json=asked, headers=other).status_code == 200
        stack.close()
        until(lambda: rig.gateway.limiter.in_flight == 0, "the streams were left")
        assert rig.http.post("/v1/rag/generate", json=asked, headers=greedy).status_code == 200
