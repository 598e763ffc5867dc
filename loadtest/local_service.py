"""Starts a service as a process, and stores the corpus in it over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from loadtest.errors import ServiceFailed
from loadtest.traffic.routes import CorpusDocument

START_S, STOP_S, INGEST_S = 180.0, 60.0, 600.0
POLL_S = 0.2
PROGRAM = ("kvstitch.service.cli", "serve")
BATCH = 500


@contextmanager
def service(
    data_dir: Path,
    model: Path | None = None,
    *,
    program: Sequence[str] = PROGRAM,
    start_s: float = START_S,
) -> Iterator[str]:
    """Start a service and stop it at the end of the block. It gets the KVSTITCH_* variables.

    What is measured is a model's answer: without one of these that says otherwise, questions that
    the documents do not answer go to the model, too.

    Args:
        data_dir: its data folder, created if needed.
        model: model folder to serve; default: the demo's.
        program: module and words that serve; it takes the options of `kvstitch serve`.
        start_s: seconds that starting may take.

    Yields:
        Its base URL.

    Raises:
        ServiceFailed: it did not start; the message has the end of its log.
    """
    port = _free_port()
    command = [sys.executable, "-m", *program, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--data-dir", str(data_dir)]
    if model is not None:
        command += ["--model", str(model)]
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT,
            env={"KVSTITCH_UNANSWERABLE": "answer"} | os.environ,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_ready(url, process, log, start_s)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ingest(base_url: str, documents: Sequence[CorpusDocument], api_key: str = "") -> int:
    """Store the documents and wait until their KV caches are stored; returns how many.

    Raises:
        ServiceFailed: the service did not take them.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=base_url, headers=headers, timeout=60.0) as http:
        for start in range(0, len(documents), BATCH):
            batch = documents[start : start + BATCH]
            body = {"documents": [document.body() for document in batch]}
            reply = http.post("/admin/precompute", json=body)
            if reply.status_code != 202:
                raise ServiceFailed(f"/admin/precompute: {reply.status_code} {reply.text[:500]}")
            _wait_done(http, str(reply.json()["job_id"]))
    return len(documents)


def first_model(base_url: str, api_key: str = "") -> str:
    """The name of the first model of GET /v1/models.

    Raises:
        ServiceFailed: the service does not answer.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        reply = httpx.get(f"{base_url}/v1/models", headers=headers, timeout=30.0)
        reply.raise_for_status()
        return str(reply.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise ServiceFailed(f"{base_url}/v1/models: {error}") from None


def _wait_done(http: httpx.Client, job_id: str) -> None:
    give_up_at = time.monotonic() + INGEST_S
    while True:
        job = http.get(f"/admin/jobs/{job_id}").json()
        if job["state"] == "succeeded":
            return
        if job["state"] not in ("queued", "running") or time.monotonic() > give_up_at:
            raise ServiceFailed(f"the ingest job did not succeed: {json.dumps(job)[:500]}")
        time.sleep(POLL_S)


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path, start_s: float) -> None:
    give_up_at = time.monotonic() + start_s
    while True:
        try:
            if httpx.get(f"{url}/health/ready", timeout=5.0).status_code == 200:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > give_up_at:
            end = log.read_text(errors="replace")[-2000:]
            raise ServiceFailed(f"the service did not start:\n{end}")
        time.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
