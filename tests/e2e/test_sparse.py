"""SamKV over HTTP: only a part of the documents' KV is read and held, from SSD and from Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service
from tests.redis_server import redis_server

QUESTION = "Which colour is it?"
SAMKV = {"method": "samkv"}


def long_documents(corpus: Documents) -> Documents:
    """Three documents of about a thousand tokens."""
    third = len(corpus) // 3
    texts = [" ".join(d["text"] for d in corpus[i * third : (i + 1) * third]) for i in range(3)]
    return [{"doc_id": f"long-{i}", "title": f"Volume {i}", "text": t} for i, t in enumerate(texts)]


def check(service: Service, tier: str) -> None:
    before = service.metrics()
    answer = service.ask(QUESTION, fusion=SAMKV, max_tokens=4, top_k=3)
    cache = answer["cache"]
    assert [d["tier"] for d in cache["documents"]] == [tier] * 3
    read = sum(d["bytes"] for d in cache["documents"])
    stored = sum(d["stored_bytes"] for d in cache["documents"])
    assert read < 0.5 * stored
    assert cache["kept_ratio"] < 0.5
    assert cache["recomputed_ratio"] <= 0.15
    assert cache["coverage"] < 0.6
    again = service.ask(QUESTION, fusion=SAMKV, max_tokens=4, top_k=3)
    assert again["text"] == answer["text"]
    after = service.metrics()
    grown = after.value("kvstitch_answer_kv_read_bytes_total", tier=tier) - before.value(
        "kvstitch_answer_kv_read_bytes_total", tier=tier
    )
    assert grown >= 2 * read * 0.9
    whole = service.ask(QUESTION, fusion={"method": "pie"}, max_tokens=4, top_k=3)
    for document in whole["cache"]["documents"]:
        assert document["bytes"] == pytest.approx(document["stored_bytes"], rel=0.05)


def test_from_ssd(serve: Serve, endless_model: Path, corpus: Documents) -> None:
    with serve(model=endless_model, chunk_tokens=1024, memory_tier_mib=0, sketches=True) as service:
        service.ingest(long_documents(corpus))
        check(service, "ssd")


@pytest.mark.slow
def test_from_redis(serve: Serve, endless_model: Path, corpus: Documents) -> None:
    with redis_server() as redis:
        options = {"chunk_tokens": 1024, "memory_tier_mib": 0, "ssd_tier_gib": 0, "sketches": True}
        with serve(model=endless_model, redis_url=redis.patient_url, **options) as service:
            service.ingest(long_documents(corpus))
            check(service, "redis")
