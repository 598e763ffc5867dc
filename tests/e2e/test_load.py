"""Eight clients at once over real passages: nothing fails, nothing hangs, and the service's
histograms tell the times that the clients see."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from benchmarks.retrieval.musique import measure, percentile, read
from kvstitch.client import server_sent_events as events
from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import HANG_S, Service

SLICE = Path(__file__).parents[1] / "data" / "musique_slice.jsonl"
PASSAGES = 8
REQUESTS = 32


@pytest.mark.slow
def test_musique_at_concurrency_eight(service: Service) -> None:
    """Passages in, questions at concurrency 8: all complete, all from the cache; p50 and p95 of
    TTFT and TPOT agree within a bucket between the clients and /metrics; tokens add up."""
    questions, documents = read(SLICE)
    asked = list(itertools.islice(itertools.cycle(questions), REQUESTS))
    record = asyncio.run(
        measure(
            str(service.http.base_url),
            asked,
            documents[:PASSAGES],
            concurrency=8,
            fields={"fusion": {"method": "a3"}, "top_k": 3, "max_tokens": 12},
        )
    )
    assert (record["completed"], record["failed"]) == (REQUESTS, 0), record["errors"]
    assert record["documents"] == PASSAGES and record["chunks"] > PASSAGES
    assert {s["tokens"] for s in record["samples"]} == {12}
    assert all(len(s["tiers"]) == 3 and "cold" not in s["tiers"] for s in record["samples"])
    assert len(record["latency"]) == 4
    for row in record["latency"]:
        assert row["agree"], row
    tokens = record["prompt_tokens"]
    assert tokens["cold"] == 0
    assert tokens["memory"] + tokens["ssd"] > tokens["recomputed"] > 0
    assert service.metrics().value("kvstitch_requests_in_flight") == 0


CLIENTS = 50
QUEUE = 8


@pytest.mark.slow
def test_fifty_clients_before_a_queue_of_eight(serve: Serve, twelve: Documents) -> None:
    """Every one of them ends in a whole answer or in a refusal that says when to come back, with
    and without a stream; none hangs, and nothing is left of them."""
    with serve(max_running=4, max_waiting=QUEUE - 4) as service:
        service.ingest(twelve[:4])
        together = threading.Barrier(CLIENTS)

        def client(number: int) -> tuple[int, str]:
            body = {"question": "Which colour?", "max_tokens": 8, "stream": number % 2 == 0}
            with httpx.Client(base_url=service.http.base_url, timeout=HANG_S) as http:
                together.wait()
                reply = http.post("/v1/rag/generate", json=body)
            if reply.status_code == 200:
                if body["stream"]:
                    return 200, list(events(iter(reply.text.splitlines())))[-1][0]
                return 200, "done" if reply.json()["usage"]["completion_tokens"] == 8 else "short"
            return reply.status_code, reply.headers.get("retry-after", "")

        with ThreadPoolExecutor(CLIENTS) as pool:
            ended = list(pool.map(client, range(CLIENTS)))
        answered = [how for status, how in ended if status == 200]
        refused = [(status, how) for status, how in ended if status != 200]
        assert len(answered) >= QUEUE and set(answered) == {"done"}
        assert refused, "the queue has no bound"
        assert all(status in (429, 503) and int(how) >= 1 for status, how in refused)
        assert service.metrics().value("kvstitch_requests_rejected_total") == len(refused)
        assert service.settled_metrics().value("kvstitch_requests_in_flight") == 0
        assert service.metrics().value("kvstitch_pool_free_ratio") == 1


def test_percentiles_are_estimated_as_prometheus_does() -> None:
    """Linear within the bucket of the rank; a client one bucket away agrees, two away does not."""
    cumulative = {"0.1": 0.0, "0.5": 10.0, "1.0": 10.0, "2.0": 20.0, "+Inf": 20.0}
    median = percentile("ttft", 0.5, [0.3] * 10 + [1.5] * 10, cumulative)
    assert (median.client_s, median.bucket, median.agree) == (0.3, (0.1, 0.5), True)
    assert median.metrics_s == 0.5
    high = percentile("ttft", 0.95, [0.3] * 10 + [0.9] * 10, cumulative)
    assert (high.bucket, high.metrics_s, high.agree) == ((1.0, 2.0), 1.9, True)
    assert not percentile("ttft", 0.95, [0.3] * 20, cumulative).agree
