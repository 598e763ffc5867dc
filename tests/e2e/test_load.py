"""Many clients at once: nothing fails, nothing hangs, and nothing is left of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from kvstitch.client import server_sent_events as events
from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import HANG_S

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
