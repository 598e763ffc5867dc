"""What was stored once is stored: SIGKILL of gateway and worker at once loses nothing."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service, tiers
from tests.redis_server import redis_server

OPERATIONS = "kvstitch_tier_operations_total"
NEW_KEYS = "kvstitch_store_new_keys_total"


def answers(service: Service, twelve: Documents) -> list[dict[str, Any]]:
    """Three prompts that together hold all twelve documents, in an order retrieval chooses."""
    names = [d["doc_id"] for d in twelve]
    return [
        service.ask(
            "What colour is it?",
            documents=names[start : start + 4],
            top_k=4,
            fusion={"method": "pie"},
            max_tokens=8,
        )
        for start in (0, 4, 8)
    ]


def assert_nothing_is_lost(
    service: Service,
    twelve: Documents,
    before: list[dict[str, Any]],
    tier: str,
) -> None:
    """Every document hits, read from `tier`; same texts as `before`; not one new key.

    The report may name a faster tier: the chunk was prefetched from `tier` into that one just
    before. The count of reads does not depend on such timing.
    """
    after = answers(service, twelve)
    for was, now in zip(before, after, strict=True):
        found = tiers(now)
        assert len(found) == 4
        assert "cold" not in found, now["cache"]
        assert now["cache"]["system"]["tier"] != "cold"
        assert now["text"] == was["text"]
        assert now["citations"] == was["citations"]
    metrics = service.settled_metrics()
    assert metrics.value(NEW_KEYS) == 0, "a fresh process has seen no key that it did not know"
    assert metrics.value("kvstitch_documents") == len(twelve)
    read = metrics.value(OPERATIONS, tier=tier, op="read", outcome="hit")
    assert read >= len(twelve) + 1, "all documents and S"


@pytest.mark.slow
def test_kill_nine_without_redis(serve: Serve, twelve: Documents) -> None:
    """Accepted means on disk: a job that was cut off goes on by itself, to its end. Then catalog,
    index and KV come back from disk."""
    with serve() as service:
        reply = service.http.post("/admin/precompute", json={"documents": twelve})
        assert reply.status_code == 202
        service.kill_nine()
        service.start()
        job = f"/admin/jobs/{reply.json()['job_id']}"
        service.until(
            lambda: bool(service.http.get(job).json()["state"] == "succeeded"),
            "the job does not go on",
        )
        before = answers(service, twelve)
        assert len(service.chunk_files()) == len(twelve) + 1, "the documents and S, once each"
        service.kill_nine()
        service.start()
        assert_nothing_is_lost(service, twelve, before, "ssd")


@pytest.mark.slow
def test_kill_nine_with_redis_and_with_the_disk_lost(serve: Serve, twelve: Documents) -> None:
    """With Redis the disk is read first; when the SSD folder is gone, Redis has every chunk."""
    with redis_server() as redis, serve(redis_url=redis.patient_url) as service:
        service.ingest(twelve)
        before = answers(service, twelve)
        service.until(
            lambda: service.wrote("redis", len(twelve) + 1), "not everything reached Redis"
        )
        service.kill_nine()
        service.start()
        assert_nothing_is_lost(service, twelve, before, "ssd")
        service.kill_nine()
        shutil.rmtree(service.data_dir / "kv")
        service.start()
        assert_nothing_is_lost(service, twelve, before, "redis")
