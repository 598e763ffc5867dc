"""What clients measure is what the service says: TTFT and TPOT under load, client's clock against
the server's histograms, at p50 and p95."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from kvstitch.client import server_sent_events as events
from service.shared.metrics import TPOT, TTFT, Declared
from tests.e2e.metrics import Metrics
from tests.e2e.service import HANG_S, Service

CLIENTS = 4
EACH = 12
QUESTIONS = ("Which colour?", "Where is it kept?", "Who made the ship?", "How old is the town?")


@dataclass(frozen=True)
class Times:
    ttft_s: float
    tpot_s: float


def stream(http: httpx.Client, question: str) -> Times:
    """One streamed answer by the client's clock."""
    body = {"question": question, "stream": True, "max_tokens": 12}
    sent = time.perf_counter()
    arrived: list[float] = []
    with http.stream("POST", "/v1/rag/generate", json=body) as reply:
        assert reply.status_code == 200, reply.read()
        for name, data in events(reply.iter_lines()):
            if name == "token":
                arrived.append(time.perf_counter())
            last = name, data
    assert last[0] == "done", last
    tokens: int = last[1]["usage"]["completion_tokens"]
    return Times(arrived[0] - sent, (arrived[-1] - arrived[0]) / (tokens - 1))


def borders(metric: Declared) -> list[str]:
    return [*map(str, metric.buckets), "+Inf"]


def bucket_of_rank(before: Metrics, after: Metrics, metric: Declared, q: float) -> int:
    """Number of the bucket in which the server's histogram has the q-th of what came between."""
    name = f"{metric.name}_bucket"
    counted = [after.value(name, le=le) - before.value(name, le=le) for le in borders(metric)]
    assert counted[-1] == CLIENTS * EACH
    return next(i for i, count in enumerate(counted) if count >= math.ceil(q * counted[-1]))


def bucket_of_sample(seconds: Sequence[float], metric: Declared, q: float) -> int:
    """Number of the bucket that holds the q-th of the client's measurements."""
    ranked = sorted(seconds)[math.ceil(q * len(seconds)) - 1]
    return bisect_left(metric.buckets, ranked)


@pytest.mark.slow
def test_client_and_server_agree_within_a_bucket_under_load(service: Service) -> None:
    def client(number: int) -> list[Times]:
        with httpx.Client(base_url=service.http.base_url, timeout=HANG_S) as http:
            return [
                stream(http, QUESTIONS[(number + turn) % len(QUESTIONS)]) for turn in range(EACH)
            ]

    for question in QUESTIONS:
        service.ask(question, max_tokens=2)  # warms up
    before = service.metrics()
    with ThreadPoolExecutor(CLIENTS) as pool:
        times = [t for answers in pool.map(client, range(CLIENTS)) for t in answers]
    after = service.metrics()
    measured = ((TTFT, [t.ttft_s for t in times]), (TPOT, [t.tpot_s for t in times]))
    apart = {
        (metric.name, q): (
            bucket_of_sample(seconds, metric, q),
            bucket_of_rank(before, after, metric, q),
        )
        for metric, seconds in measured
        for q in (0.5, 0.95)
    }
    assert all(abs(client - server) <= 1 for client, server in apart.values()), apart


@pytest.mark.parametrize(("q", "bucket"), [(0.5, 2), (0.95, 4)])
def test_ranks_are_found_in_cumulative_counts(q: float, bucket: int) -> None:
    """Half between the second and the third border, half between the fourth and the fifth."""
    n = CLIENTS * EACH
    counts = {le: 0.0 if i < 2 else n / 2 if i < 4 else n for i, le in enumerate(borders(TTFT))}
    name = f"{TTFT.name}_bucket"
    after = Metrics({(name, frozenset({("le", le)})): count for le, count in counts.items()})
    assert bucket_of_rank(Metrics({}), after, TTFT, q) == bucket
    between = (TTFT.buckets[bucket - 1] + TTFT.buckets[bucket]) / 2
    assert bucket_of_sample([between] * n, TTFT, q) == bucket
