"""Overload, draining, crashes and restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from kvstitch.service.messages.requests import Generate
from tests.fakes.worker import FakeWorker
from tests.ports import free_port
from tests.service.gateway.rig import HANG_S, Rig, events, running, until

FAKE = (sys.executable, "-m", "tests.fakes.worker")


def test_overload_is_answered_at_once_and_nothing_hangs(folder: Path, data: Path) -> None:
    worker = FakeWorker("", held=True)
    with running(folder, data, worker=worker, max_running=2, max_waiting=2) as rig:
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(rig.ask) for _ in range(12)]
            try:
                until(lambda: sum(each.done() for each in asked) == 8, "the others are answered")
            finally:
                worker.held = False
        responses = [each.result() for each in asked]
        assert Counter(r.status_code for r in responses) == {200: 4, 503: 8}
        refused = next(r for r in responses if r.status_code == 503)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "overloaded"
        assert refused.json()["error"]["type"] == "overloaded_error"
        assert rig.metric("kvstitch_requests_rejected_total", reason="requests") == 8
        assert (
            rig.metric("kvstitch_requests_total", fusion="question_scout", outcome="overloaded")
            == 8
        )
        assert rig.ask().status_code == 200


def test_waiting_tokens_are_bounded_but_one_long_prompt_is_served(folder: Path, data: Path) -> None:
    worker = FakeWorker("", held=True)
    with (
        running(folder, data, worker=worker, max_waiting_tokens=1) as rig,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(rig.ask)
        try:
            until(lambda: worker.seen(Generate), "first request")
            assert rig.ask().status_code == 503
        finally:
            worker.held = False
        assert rig.metric("kvstitch_requests_rejected_total", reason="tokens") == 1
        assert first.result().status_code == 200


def test_worker_lost_mid_stream_is_an_error_event_then_service_recovers(rig: Rig) -> None:
    assert rig.worker is not None
    worker = rig.worker
    worker.token_delay_s = 0.2
    body = {"question": "x", "stream": True, "max_tokens": 1000}
    with rig.http.stream("POST", "/v1/rag/generate", json=body) as response:
        seen = events(response)
        assert [next(seen)[0] for _ in range(2)] == ["sources", "token"]
        rig.call(worker.stop)
        last = list(seen)[-1]
    assert last[0] == "error" and last[1]["error"]["code"] == "worker_unavailable"
    assert "send the request again" in last[1]["error"]["message"]
    unready = rig.http.get("/health/ready")
    assert unready.status_code == 503 and unready.headers["retry-after"]
    refused = rig.ask()
    assert refused.status_code == 503 and refused.headers["retry-after"]
    assert rig.metric("kvstitch_worker_up") == 0
    worker.token_delay_s = 0
    rig.call(worker.start)
    rig.wait_ready()
    assert rig.ask().status_code == 200
    assert rig.metric("kvstitch_requests_in_flight") == 0


def test_supervised_worker_that_crashes_is_started_again(folder: Path, data: Path) -> None:
    crash = data / "crash"
    command = (*FAKE, "--token-delay", "0.2", "--crash-file", str(crash))
    with running(folder, data / "d", command=command) as rig:
        first = rig.gateway.worker_pid
        body = {"question": "x", "stream": True, "max_tokens": 500}
        with rig.http.stream("POST", "/v1/rag/generate", json=body) as response:
            seen = events(response)
            assert next(seen)[0] == "sources"
            crash.touch()
            last = list(seen)[-1]
        assert last[0] == "error" and last[1]["error"]["code"] == "worker_unavailable"
        until(lambda: rig.metric("kvstitch_worker_restarts_total") == 1, "restart")
        rig.wait_ready()
        assert rig.gateway.worker_pid not in (None, first)
        assert rig.ask(max_tokens=2).status_code == 200


def test_refused_model_stops_the_service_with_its_reason(folder: Path, data: Path) -> None:
    command = (*FAKE, "--refuse", "rope_scaling dynamic is not supported")
    with running(folder, data, command=command, wait_ready=False) as rig:
        rig._thread.join(HANG_S)
        assert not rig._thread.is_alive()
        assert rig.gateway.failure == "rope_scaling dynamic is not supported"


def test_draining_finishes_streams_and_refuses_new_requests(folder: Path, data: Path) -> None:
    worker = FakeWorker("", held=True)
    body = {"question": "x", "stream": True, "max_tokens": 30}
    with running(folder, data, worker=worker, drain_timeout_s=600) as rig:
        with rig.http.stream("POST", "/v1/rag/generate", json=body) as response:
            seen = events(response)
            assert next(seen)[0] == "sources"
            rig._loop.call_soon_threadsafe(rig._server.handle_exit, signal.SIGTERM, None)
            with httpx.Client(base_url=rig.url, timeout=HANG_S) as other:
                until(lambda: other.get("/health/ready").status_code == 503, "draining")
                assert "shutting down" in other.get("/health/ready").json()["reason"]
                assert other.get("/health/live").status_code == 200
                refused = other.post("/v1/rag/generate", json={"question": "x"})
            assert refused.status_code == 503 and refused.headers["retry-after"]
            worker.held = False
            last = list(seen)[-1]
        assert last[0] == "done" and last[1]["usage"]["completion_tokens"] == 30
        rig._thread.join(HANG_S)
        assert not rig._thread.is_alive()


def test_drain_is_bounded(folder: Path, data: Path) -> None:
    worker = FakeWorker("", held=True)  # the answer never ends by itself
    with running(folder, data, worker=worker, drain_timeout_s=0.3) as rig:
        body = {"question": "x", "stream": True, "max_tokens": 1500}
        with rig.http.stream("POST", "/v1/rag/generate", json=body) as response:
            seen = events(response)
            assert next(seen)[0] == "sources"
            rig._loop.call_soon_threadsafe(rig._server.handle_exit, signal.SIGTERM, None)
            with contextlib.suppress(httpx.RemoteProtocolError):
                assert "done" not in [name for name, _ in seen]
        rig._thread.join(HANG_S)
        assert not rig._thread.is_alive()


SERVE = """
import sys
from pathlib import Path
from tests.fakes.models import HashingEmbedder
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.server import listen, serve
from kvstitch.service.gateway.workers import ProcessOptions
from kvstitch.service.settings import load
folder, data, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
fake = "tests.fakes.worker"
command = (sys.executable, "-m", fake, "--token-delay", "0.05")
gateway = Gateway(
    load(model=str(folder), data_dir=data, port=port), folder,
    embedder=HashingEmbedder(), processes=ProcessOptions(command),
)
sys.exit(3 if serve(gateway, listen('127.0.0.1', port), 0.0) else 0)
"""


def spawn(folder: Path, data: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SERVE, str(folder), str(data), str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def ready() -> bool:
        assert process.poll() is None
        try:
            return client.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
        until(ready, "service process")
    return process


def test_sigterm_and_kill_of_a_service_process(folder: Path, data: Path) -> None:
    """A process of its own: SIGTERM drains and takes the worker along; so does SIGKILL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = spawn(folder, data, port)
    body: dict[str, Any] = {"question": "x", "stream": True, "max_tokens": 20}
    with (
        httpx.Client(base_url=url, timeout=HANG_S) as client,
        client.stream("POST", "/v1/rag/generate", json=body) as response,
    ):
        seen = events(response)
        assert next(seen)[0] == "sources"
        process.send_signal(signal.SIGTERM)
        assert list(seen)[-1][0] == "done"
    assert process.wait(HANG_S) == 0

    process = spawn(folder, data, port)
    worker = httpx.get(f"{url}/status", timeout=HANG_S).json()["worker"]["pid"]
    process.kill()
    process.wait()
    until(lambda: not _alive(worker), "worker gone")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_process_helper_sees_itself() -> None:
    assert _alive(os.getpid())
