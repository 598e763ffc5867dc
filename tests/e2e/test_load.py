"""Eight clients at once over real passages: nothing fails, nothing hangs, and the service's
histograms tell the times that the clients see."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from benchmarks.musique import measure, percentile, read
from tests.e2e.service import Service

SLICE = Path(__file__).parents[1] / "data" / "musique_slice.jsonl"
PASSAGES = 8
REQUESTS = 32


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


def test_percentiles_are_estimated_as_prometheus_does() -> None:
    """Linear within the bucket of the rank; a client one bucket away agrees, two away does not."""
    cumulative = {"0.1": 0.0, "0.5": 10.0, "1.0": 10.0, "2.0": 20.0, "+Inf": 20.0}
    median = percentile("ttft", 0.5, [0.3] * 10 + [1.5] * 10, cumulative)
    assert (median.client_s, median.bucket, median.agree) == (0.3, (0.1, 0.5), True)
    assert median.metrics_s == 0.5
    high = percentile("ttft", 0.95, [0.3] * 10 + [0.9] * 10, cumulative)
    assert (high.bucket, high.metrics_s, high.agree) == ((1.0, 2.0), 1.9, True)
    assert not percentile("ttft", 0.95, [0.3] * 20, cumulative).agree
