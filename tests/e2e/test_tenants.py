"""Two tenants on one service: each hits what is its own, and neither learns of the other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import preloaded
from tests.e2e.conftest import Documents
from tests.e2e.service import Service, tiers
from tests.redis_server import redis_server

TIERS = ("memory", "ssd", "redis")
ONLY = {
    "memory": {},
    "ssd": {"memory_tier_mib": 0},
    "redis": {"memory_tier_mib": 0, "ssd_tier_gib": 0},
}


def make_key(data_dir: Path, tenant: str, *more: str) -> str:
    data_dir.mkdir(exist_ok=True)  # keys are made in the folder of a service
    command = [*preloaded.python(), "-m", "kvstitch.service.cli", "keys", "create", "--json"]
    made = subprocess.run(
        [*command, "--data-dir", str(data_dir), "--tenant", tenant, *more],
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(made.stdout)["key"])


def acting(service: Service, key: str) -> None:
    service.http.headers["Authorization"] = f"Bearer {key}"


def ask_about(service: Service, document: dict[str, Any]) -> dict[str, Any]:
    """The same prompt for whoever asks: the document comes with the question."""
    return service.ask(
        "What does it say?",
        inline_documents=[{"text": document["text"], "title": document["title"]}],
        fusion={"method": "pie"},
        max_tokens=2,
    )


def test_the_same_tenant_hits_and_another_misses_on_every_tier(
    tmp_path: Path, model: Path, twelve: Documents
) -> None:
    """Red ingests three documents. On each tier alone, red finds their KV and blue, asking with
    the very same text, does not; and the second time blue finds its own."""
    data = tmp_path / "data"
    red, blue = make_key(data, "red"), make_key(data, "blue")
    documents = [{**d, "doc_id": f"doc-{i}"} for i, d in enumerate(twelve[:3])]
    with redis_server() as redis:
        service = Service(model, data, redis_url=redis.patient_url)
        try:
            acting(service, red)
            service.start()
            service.ingest(documents)
            service.until(lambda: service.wrote("redis", 4), "not everything reached Redis")
            for tier, document in zip(TIERS, documents, strict=True):
                if tier != "memory":
                    service.kill_nine()
                    service.configure(**ONLY[tier])
                    service.start()
                acting(service, red)
                # A part of a chunk may have come from a faster tier only where there is one.
                assert set(tiers(ask_about(service, document))) == {tier}
                acting(service, blue)
                assert set(tiers(ask_about(service, document))) == {"cold"}, tier
                service.until(
                    lambda d=document: set(tiers(ask_about(service, d))) != {"cold"},  # type: ignore[misc]
                    "blue's own KV is not written back",
                )
        finally:
            service.__exit__(None, None, None)


def test_no_route_tells_a_tenant_of_anothers_documents(
    tmp_path: Path, model: Path, twelve: Documents
) -> None:
    data = tmp_path / "data"
    red, blue = make_key(data, "red"), make_key(data, "blue")
    secret = {"doc_id": "secret", "title": "Secret", "text": "The vault code of Oslo is 9134."}
    own = {"doc_id": "own", "title": "Own", "text": "Bergen is rainy and has a fish market."}
    service = Service(model, data)
    try:
        acting(service, red)
        service.start()
        job = service.ingest([secret, *twelve[:2]])
        receipt = service.http.delete(f"/admin/documents/{twelve[0]['doc_id']}").json()
        acting(service, blue)
        service.ingest([own])
        for question in ("What is the vault code of Oslo?", "secret"):
            for mode in ("dense", "sparse", "hybrid"):
                answer = service.ask(question, top_k=10, retrieval=mode, max_tokens=2)
                assert {c["doc_id"] for c in answer["citations"]} <= {"own"}, mode
        http: httpx.Client = service.http
        assert http.post("/v1/rag/generate", json={"question": "x", "documents": ["secret"]}
                         ).status_code == 404  # fmt: skip
        for path in (
            "/admin/documents/secret",
            f"/admin/jobs/{job['job_id']}",
            f"/admin/receipts/{receipt['receipt_id']}",
        ):
            assert http.get(path).status_code == 404, path
        assert http.delete("/admin/documents/secret").status_code == 404
        assert http.put("/admin/pins/secret").status_code == 404
        removed = http.post("/admin/deletions", json={"doc_ids": ["secret"]}).json()
        assert removed["documents"] == 0
        assert [d["doc_id"] for d in http.get("/admin/documents").json()["documents"]] == ["own"]
        assert len(http.get("/admin/jobs").json()["jobs"]) == 1
        (collection,) = http.get("/admin/collections").json()["collections"]
        assert collection["documents"] == 1
        assert http.get("/metrics").status_code == 403, "it counts everybody's documents"
        assert http.get("/status").json()["corpus"]["documents"] == 1
        acting(service, red)
        assert http.get("/admin/documents/secret").json()["text"] == secret["text"]
        found = service.ask("What is the vault code of Oslo?", top_k=1, max_tokens=2)
        assert [c["doc_id"] for c in found["citations"]] == ["secret"]
    finally:
        service.__exit__(None, None, None)


@pytest.mark.slow
def test_what_a_tenant_may_store(tmp_path: Path, model: Path) -> None:
    """The quota is of the tenant, replaced documents count once, and deleting makes room."""
    data = tmp_path / "data"
    keys = {limit: make_key(data, limit) for limit in ("documents", "bytes")}
    service = Service(model, data, tenant_max_documents=4, tenant_max_bytes=130)
    text = "About thirty bytes of a text."
    assert 4 * len(text) < 130 < 5 * len(text)
    try:
        acting(service, keys["documents"])
        service.start()
        for limit, room, first, refused_text in (
            ("documents", 4, ("a", "b", "d", "e"), "x"),
            ("bytes", 130, ("a", "b", "d"), 2 * text),
        ):
            acting(service, keys[limit])
            service.ingest([{"doc_id": d, "text": text} for d in first])
            service.ingest([{"doc_id": "a", "text": text.replace("a", "o")}])
            body = {"documents": [{"doc_id": "c", "text": refused_text}]}
            refused = service.http.post("/admin/precompute", json=body)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["field"] == limit and str(room) in refused.json()["detail"]
            assert service.http.delete("/admin/documents/a").status_code == 200
            service.ingest(body["documents"])
    finally:
        service.__exit__(None, None, None)
