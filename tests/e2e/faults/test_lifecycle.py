"""Leaving and ending: SIGTERM, clients that disconnect, a worker that dies in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Documents
from tests.e2e.service import Service

MANY = 60_000  # tokens; generating them takes minutes
FEW = MANY // 10
STEPS = "kvstitch_decode_steps_total"
READ = 3  # pieces of a stream before it is left: a second token needs a decode step
QUESTION = "Which colour is it?"


@pytest.fixture(scope="module")
def endless(
    tmp_path_factory: pytest.TempPathFactory, endless_model: Path, twelve: Documents
) -> Iterator[Service]:
    """Serves a model that goes on until it is stopped."""
    data = tmp_path_factory.mktemp("endless") / "data"
    settings = {"pool_tokens": 200_000, "drain_timeout_s": 60}
    with Service(endless_model, data, **settings) as service:
        service.ingest(twelve[:3])
        yield service


def assert_stopped(service: Service, steps_before: float) -> None:
    """No sequence runs any more, after a small part of its tokens; the steps have stopped."""

    def none_runs() -> bool:
        metrics = service.metrics()
        return metrics.value("kvstitch_sequences") == 0 and metrics.value(STEPS) > steps_before

    service.until(none_runs, "the sequence goes on without its client")
    stopped_at = service.metrics().value(STEPS)
    assert stopped_at - steps_before < FEW
    time.sleep(2.5)  # two reports of the worker
    metrics = service.metrics()
    assert metrics.value(STEPS) == stopped_at
    assert metrics.value("kvstitch_requests_in_flight") == 0
    assert metrics.value("kvstitch_pool_free_ratio") == 1


def test_a_client_that_leaves_its_stream_stops_the_sequence(endless: Service) -> None:
    """After a few tokens the connection is closed: the worker stops, the KV pool is free again."""
    before = endless.settled_metrics()
    with endless.stream(QUESTION, max_tokens=MANY) as events:
        assert [next(events)[0] for _ in range(1 + READ)] == ["sources", *["token"] * READ]
    assert_stopped(endless, before.value(STEPS))
    left = endless.metrics().value("kvstitch_disconnects_total")
    assert left == before.value("kvstitch_disconnects_total") + 1


@pytest.mark.slow
def test_a_client_that_gives_up_waiting_stops_the_sequence(endless: Service) -> None:
    """The same without a stream: nothing has been sent yet when the client leaves."""
    before = endless.settled_metrics()
    body = {"question": QUESTION, "max_tokens": MANY}
    with endless.asking("/v1/rag/generate", body):
        endless.until_it_decodes()
    assert_stopped(endless, before.value(STEPS))
    left = endless.metrics().value("kvstitch_disconnects_total")
    assert left == before.value("kvstitch_disconnects_total") + 1


def test_a_worker_that_dies_is_told_and_replaced(endless: Service) -> None:
    """SIGKILL of the worker in the middle of a stream: an `error` event says what happened, the
    supervisor starts another one, and it knows what was stored."""
    before = endless.ask(QUESTION, max_tokens=8, fusion={"method": "pie"})
    worker = endless.worker_pid()
    assert worker is not None
    with endless.stream(QUESTION, max_tokens=MANY) as events:
        names = [next(events)[0], next(events)[0]]
        os.kill(worker, signal.SIGKILL)
        rest = list(events)
    assert names == ["sources", "token"]
    name, last = rest[-1]
    assert name == "error"
    assert "restarted" in last["error"]["message"] and "again" in last["error"]["message"]
    assert last["error"]["code"] == "worker_unavailable"
    assert {name for name, _ in rest[:-1]} <= {"token"}
    meanwhile = endless.post(QUESTION, max_tokens=1)
    assert meanwhile.status_code == 200 or (
        meanwhile.status_code == 503 and int(meanwhile.headers["retry-after"]) >= 1
    )
    endless.wait_ready()
    after = endless.ask(QUESTION, max_tokens=8, fusion={"method": "pie"})
    assert after["text"] == before["text"]
    assert "cold" not in {d["tier"] for d in after["cache"]["documents"]}
    assert endless.worker_pid() != worker
    assert endless.metrics().value("kvstitch_worker_restarts_total") == 1


def test_sigterm_finishes_the_open_stream(endless: Service) -> None:
    """The stream that is open goes on to its `done`, new requests are refused with 503 meanwhile,
    then both processes end by themselves with exit code 0. (The last test of this module.)"""
    worker = endless.worker_pid()
    tokens = 1500  # long enough to look around while it runs
    refused, looked = 0, False
    with endless.stream(QUESTION, max_tokens=tokens) as events:
        received = [next(events), next(events)]
        endless.sigterm()
        for event in events:
            received.append(event)
            # How soon a busy machine delivers the signal nobody knows.
            if refused != 503 and len(received) % 50 == 0:
                refused = endless.post(QUESTION, max_tokens=1).status_code
            if refused == 503 and not looked:
                looked = True
                ready = endless.http.get("/health/ready")
                assert ready.status_code == 503
                assert "shutting down" in ready.json()["reason"]
                assert endless.http.get("/health/live").status_code == 200
    assert looked
    assert [received[0][0], received[-1][0]] == ["sources", "done"]
    done = received[-1][1]
    assert done["usage"]["completion_tokens"] == tokens
    assert done["finish_reason"] == "length"
    assert endless.exit_code() == 0
    assert worker is not None and not Path(f"/proc/{worker}").exists()
