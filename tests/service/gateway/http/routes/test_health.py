"""Health, status, metrics, models and methods."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvstitch.service.shared.metrics import TTFT_BUCKETS
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import Rig, events, pinged, running, until


def test_models_and_methods(shared: Rig) -> None:
    models = shared.http.get("/v1/models").json()
    assert models["object"] == "list" and models["data"][0]["id"] == "model"
    methods = shared.http.get("/v1/methods").json()
    assert [m["name"] for m in methods["fusion"]] == ["a3", "pie", "question_scout", "vanilla"]
    assert methods["fusion"][0]["parameters"]["ratio"]["le"] == 1


def test_ready_says_why_not(folder: Path, data: Path) -> None:
    with running(folder, data, command=("false",), wait_ready=False) as rig:
        for path in ("/health", "/health/live"):
            reply = rig.http.get(path)
            assert reply.status_code == 200 and reply.json() == {"status": "ok"}
        response = rig.http.get("/health/ready")
        assert response.status_code == 503 and "worker" in response.json()["reason"]
        status = rig.http.get("/status").json()
        assert status["state"] == "not ready" and status["model"] is None
        for path in ("/v1/models", "/v1/methods"):
            assert rig.http.get(path).status_code == 503


def test_status(shared: Rig) -> None:
    until(lambda: shared.http.get("/status").json()["tiers"], "stats")
    status = shared.http.get("/status").json()
    assert status["corpus"]["documents"] == 3 and status["model"]["layers"] == 4
    assert status["tiers"]["memory"]["entries"] == 3
    assert status["corpus"]["jobs"] == {"succeeded": 1}


def test_metrics_count_what_the_responses_say(rig: Rig) -> None:
    rig.ingest()
    results = [rig.ask(max_tokens=n).json() for n in (1, 3, 5)]
    rig.stream(max_tokens=4, fusion={"method": "pie"})
    assert rig.ask(fusion={"method": "nope"}).status_code == 422
    text = rig.http.get("/metrics").text
    assert 'kvstitch_requests_total{fusion="question_scout",outcome="ok"} 3.0' in text
    assert 'kvstitch_requests_total{fusion="pie",outcome="ok"} 1.0' in text
    assert 'kvstitch_requests_total{fusion="none",outcome="unknown_method"} 1.0' in text
    assert "kvstitch_request_ttft_seconds_count 4.0" in text
    assert "kvstitch_request_tpot_seconds_count 3.0" in text
    assert "kvstitch_inter_token_seconds_count 9.0" in text
    assert "kvstitch_completion_tokens_total 13.0" in text
    assert 'kvstitch_stage_seconds_count{stage="embed"} 4.0' in text
    prompt = results[0]["usage"]["prompt_tokens"]
    sources = ("memory", "ssd", "redis", "recomputed", "cold", "question")
    counted = sum(rig.metric("kvstitch_prompt_tokens_total", source=s) for s in sources)
    assert counted == 4 * prompt
    cached = results[0]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert rig.metric("kvstitch_prompt_tokens_total", source="memory") == 4 * cached
    until(lambda: "kvstitch_decode_steps_total" in rig.http.get("/metrics").text, "worker's")
    total = rig.metric("kvstitch_request_e2e_seconds_sum")
    assert total >= sum(r["timing"]["total_s"] for r in results)


def test_every_response_is_counted_by_its_route_and_not_by_its_path(rig: Rig) -> None:
    rig.ingest()
    rig.http.delete("/admin/documents/somebody's secret")
    rig.http.get("/nowhere/secret")
    rig.ask(max_tokens=1)
    counted = {
        (route, status): rig.metric("kvstitch_http_responses_total", route=route, status=status)
        for route, status in (
            ("/admin/documents/{doc_id:path}", "404"),
            ("none", "404"),
            ("/v1/rag/generate", "200"),
        )
    }
    assert set(counted.values()) == {1}, counted
    assert "secret" not in rig.http.get("/metrics").text


def test_what_became_of_segments_and_what_it_saved_is_counted(rig: Rig) -> None:
    rig.ingest()
    result = rig.ask(max_tokens=2).json()
    segments = [result["cache"]["system"], *result["cache"]["documents"]]
    counted = {
        decision: rig.metric("kvstitch_answer_segments_total", decision=decision)
        for decision in ("load", "recompute", "miss")
    }
    cold = sum(segment["tier"] == "cold" for segment in segments)
    assert counted == {"load": len(segments) - cold, "recompute": 0, "miss": cold}
    assert rig.metric("kvstitch_answer_flops_total") == result["cache"]["flops"]
    full = rig.metric("kvstitch_answer_full_prefill_flops_total")
    assert full == result["cache"]["full_prefill_flops"]


def test_the_queue_shows_its_limits(rig: Rig) -> None:
    settings = rig.gateway.settings
    limit = settings.max_running + settings.max_waiting
    assert rig.metric("kvstitch_requests_limit") == limit
    assert rig.metric("kvstitch_waiting_tokens_limit") == settings.max_waiting_tokens
    rig.ingest()
    rig.ask(max_tokens=2)
    assert rig.metric("kvstitch_waiting_tokens") == 0
    free, size = (rig.metric(f"kvstitch_disk_{x}_bytes", volume="data") for x in ("free", "size"))
    assert 0 < free < size


def bucket(seconds: float) -> int:
    return sum(seconds > border for border in TTFT_BUCKETS)


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.2])
def test_client_and_server_agree_on_ttft_within_a_bucket(rig: Rig, delay: float) -> None:
    assert rig.worker is not None
    rig.worker.prefill_delay_s = delay
    rig.ask(max_tokens=1)  # warms up both ends
    apart = []
    for _ in range(50):  # on a busy machine either end may be held up
        before = rig.metric("kvstitch_request_ttft_seconds_sum")
        seen, reported = streamed_ttft(rig)
        counted = rig.metric("kvstitch_request_ttft_seconds_sum") - before
        assert abs(counted - reported) < 1e-6 and reported >= delay
        apart.append(abs(bucket(seen) - bucket(reported)))
        if apart[-1] <= 1:
            break
    assert min(apart) <= 1


def streamed_ttft(rig: Rig) -> tuple[float, float]:
    """Of one answer, by the client's clock and as the service says."""
    started = time.perf_counter()
    seen: list[float] = []
    body = {"question": "x", "stream": True, "max_tokens": 3}
    with rig.http.stream("POST", "/v1/rag/generate", json=body) as response:
        for event, data in events(response):
            if event == "token":
                seen.append(time.perf_counter() - started)
            if event == "done":
                reported: float = data["timing"]["ttft_s"]
    return seen[0], reported


def test_openapi_is_served(shared: Rig) -> None:
    paths = shared.http.get("/openapi.json").json()["paths"]
    assert {"/v1/rag/generate", "/admin/precompute", "/metrics"} <= set(paths)


def test_idle_streams_are_pinged(folder: Path, data: Path) -> None:
    worker = FakeWorker("", held=True)
    with running(folder, data, worker=worker, stream_ping_s=0.1) as rig:
        body = {"question": "x", "stream": True, "max_tokens": 1}
        with rig.http.stream("POST", "/v1/rag/generate", json=body) as response:
            text = pinged(response.iter_lines(), worker)
    assert text.count(": ping\n\n") >= 2
    assert text.index("event: sources") < text.index(": ping") < text.index("event: done")
