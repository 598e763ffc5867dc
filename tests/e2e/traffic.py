"""Requests along every path of a service: hits on each tier, misses, damage, errors, overload.

Each function leaves the service serving. What they leave in the metrics is the point of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.conftest import Documents
from tests.e2e.service import HANG_S, START_S, Service, tiers
from tests.redis_server import RedisServer

QUESTION = "Which colour?"
PIE = {"method": "pie"}  # every stored document is read whole and nothing is computed anew


def answers(service: Service, documents: Documents) -> None:
    """Every kind of answer: fused, in full, with eviction, streamed, of documents sent along."""
    names = [d["doc_id"] for d in documents[:3]]
    service.ask(QUESTION, max_tokens=8)
    service.ask(QUESTION, documents=names, fusion={"method": "vanilla"}, max_tokens=4)
    service.ask(QUESTION, documents=names, fusion=PIE, max_tokens=4)
    service.ask(QUESTION, documents=names, eviction={"method": "snapkv", "budget": 64})
    with service.stream(QUESTION, max_tokens=8) as events:
        assert [name for name, _ in events][-1] == "done"
    sent = [{"title": "Sent along", "text": "The kettle is red and stands in the kitchen."}]
    answer = service.ask(QUESTION, inline_documents=sent, max_tokens=2)
    assert set(tiers(answer)) == {"cold"}
    chat = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 2}
    assert service.http.post("/v1/chat/completions", json=chat).status_code == 200


def hit(service: Service, names: Sequence[str], tier: str) -> None:
    """Ask for one document after the other until one comes from `tier`.

    A planner that found the tier slow computes instead, and tries it again after half a minute.
    """
    turn = itertools.cycle(names)

    def came() -> bool:
        chosen = {"documents": [next(turn)], "top_k": 1, "fusion": PIE, "max_tokens": 2}
        # The second time a document that fits is in memory.
        times = 2 if tier == "memory" else 1
        return [tiers(service.ask(QUESTION, **chosen)) for _ in range(times)][-1] == [tier]

    service.until(came, f"no document comes from {tier}", START_S)


def from_redis(service: Service, names: Sequence[str]) -> None:
    for file in service.chunk_files():
        file.unlink(missing_ok=True)
    hit(service, names, "redis")


def damaged(service: Service, names: Sequence[str]) -> None:
    """Every file on disk loses a bit; documents are asked for until one of them is read."""

    def refused() -> bool:
        for file in service.chunk_files():
            content = bytearray(file.read_bytes())
            content[-100] ^= 1
            file.write_bytes(content)
        problems = [
            problem
            for name in names
            for document in service.ask(
                QUESTION, documents=[name], top_k=1, fusion=PIE, max_tokens=2
            )["cache"]["documents"]
            for problem in document["problems"]
        ]
        return any("corrupt" in problem for problem in problems)

    service.until(refused, "nobody notices the damage")


def compared(service: Service, times: int = 30) -> None:
    """Fused answers until the correctness gate has held so many against full prefill."""

    def enough() -> bool:
        service.ask(QUESTION, fusion=PIE, max_tokens=2)
        made = service.metrics()
        outcomes = ("agree", "disagree")
        counts = [made.value("kvstitch_gate_checks_total", outcome=name) for name in outcomes]
        return sum(counts) >= times

    service.until(enough, "the gate does not compare", START_S)


def warned(service: Service) -> None:
    """A file of which something is stored only by guess."""
    text = "Das Menü: Café, Thé, Crème brûlée für zwei Gäste. Schöne Grüße aus Köln."
    file = {"file": ("menu.txt", text.encode("latin-1"))}
    job = service.http.post("/admin/precompute", params={"collection": "guessed"}, files=file)
    assert job.status_code == 202
    service.until(
        lambda: "kvstitch_document_warnings_total{" in service.http.get("/metrics").text,
        "no warning is counted",
    )


def wrong(service: Service) -> None:
    """What clients get wrong, and one that leaves."""
    assert service.post(QUESTION, fusion={"method": "nope"}).status_code == 422
    assert service.post(QUESTION, documents=["nobody's"]).status_code == 404
    assert service.http.get("/nowhere").status_code == 404
    asked, hurried = {"question": QUESTION}, {"X-Request-Deadline-Ms": "1"}
    late = service.http.post("/v1/rag/generate", json=asked, headers=hurried)
    assert late.status_code == 504
    before = service.metrics().value("kvstitch_disconnects_total")
    with service.stream(QUESTION, max_tokens=400) as events:
        next(name for name, _ in events if name == "token")
    service.until(
        lambda: service.metrics().value("kvstitch_disconnects_total") > before,
        "nobody notices that the client left",
    )


def too_many(service: Service, clients: int = 24) -> None:
    """More at once than may wait: some are refused, none hangs."""
    together = threading.Barrier(clients)

    def client(_: int) -> int:
        with httpx.Client(base_url=service.http.base_url, timeout=HANG_S) as http:
            together.wait()
            body = {"question": QUESTION, "max_tokens": 16}
            return http.post("/v1/rag/generate", json=body).status_code

    with ThreadPoolExecutor(clients) as pool:
        statuses = set(pool.map(client, range(clients)))
    assert statuses == {200, 503}, statuses


def without_redis(service: Service, redis: RedisServer, names: Sequence[str]) -> None:
    """Redis is gone: requests go on, its circuit breaker opens."""
    redis.stop()

    def noticed() -> bool:
        service.ask(QUESTION, documents=[names[0]], top_k=1, max_tokens=1)
        for file in service.chunk_files():
            file.unlink(missing_ok=True)
        return service.metrics().value("kvstitch_tier_healthy", tier="redis") == 0

    service.until(noticed, "nobody notices that Redis is gone")
