"""What the files tell a container to run, run: the chart's Redis, then a service with the chart's
environment, its probes, health checks, ingest and `helm test`. Only host, port and folder differ.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests import preloaded
from tests.ops import tools
from tests.ops.conftest import Rendered
from tests.ops.test_chart import environment, one, server
from tests.ops.test_images import instructions
from tests.ports import free_port

START_S = 180.0


def plain() -> dict[str, str]:
    """This environment without settings of the service."""
    return {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}


def until(done: Any, what: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + START_S
    while not done():
        assert process.poll() is None, f"{what}: ended with {process.returncode}"
        assert time.monotonic() < give_up_at, what
        time.sleep(0.1)


@pytest.fixture(scope="module")
def redis(rendered: Rendered, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The chart's Redis with the password the chart made; its URL as the server is given it."""
    answer = rendered["default"]
    (container,) = one(answer, "Deployment", "-redis")["spec"]["template"]["spec"]["containers"]
    (encoded,) = one(answer, "Secret", "-redis")["data"].values()
    password = base64.b64decode(encoded).decode()
    port = free_port()
    shell, flag, script = container["command"]
    folder = tmp_path_factory.mktemp("redis")
    script = script.replace("--dir /data", f"--dir {folder} --port {port} --bind 127.0.0.1")
    env = {**plain(), "REDISCLI_AUTH": password}
    process = subprocess.Popen([shell, flag, script], env=env, stdout=subprocess.DEVNULL)
    try:
        probe = [*container["readinessProbe"]["exec"]["command"]]
        probe[-1] = probe[-1].replace("redis-cli", f"redis-cli -p {port}")
        until(lambda: subprocess.run(probe, env=env).returncode == 0, "redis", process)
        refused = subprocess.run(probe, env={**env, "REDISCLI_AUTH": "wrong"}, capture_output=True)
        assert refused.returncode != 0
        said = subprocess.run(
            ["redis-cli", "-p", str(port), "config", "get", "maxmemory*"],
            env=env, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        known = dict(zip(said[::2], said[1::2], strict=False))
        assert known["maxmemory"] == str(1024 * 1024 * 1024)
        assert known["maxmemory-policy"] == "allkeys-lru"
        url = environment(answer)["KVSTITCH_REDIS_URL"]
        url = url.replace("$(REDIS_PASSWORD)", password)
        yield url.replace("demo-kvstitch-redis:6379", f"127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def url(rendered: Rendered, redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service as the chart starts it."""
    answer = rendered["default"]
    port, folder = free_port(), tmp_path_factory.mktemp("service")
    assert server(answer)["containers"][0]["args"] == ["kvstitch", "serve"]
    env = {
        **plain(),
        **environment(answer),
        "KVSTITCH_HOST": "127.0.0.1",
        "KVSTITCH_PORT": str(port),
        "KVSTITCH_DATA_DIR": str(folder),
        "KVSTITCH_REDIS_URL": redis,
        "KVSTITCH_THREADS": "1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*preloaded.python(), "-m", "kvstitch.service.cli", "serve"],
            env=env, stdout=log, stderr=log, cwd=tools.REPOSITORY,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        path = server(answer)["containers"][0]["startupProbe"]["httpGet"]["path"]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(address + path, timeout=START_S).status_code == 200
        return False

    try:
        until(ready, (folder / "log").read_text(), process)
        yield address
        # What preStop leads to: SIGTERM ends the service, well within the grace period.
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=server(answer)["terminationGracePeriodSeconds"]) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def moved(command: str, url: str) -> str:
    """A health check asks the port of this test's service."""
    assert "http://127.0.0.1:8000" in command
    return command.replace("http://127.0.0.1:8000", url)


def test_health_checks_of_image_and_compose_file(url: str, ops_tools: None) -> None:
    (check,) = (rest for word, rest in instructions() if word == "HEALTHCHECK" and "CMD" in rest)
    image = json.loads(check.partition("CMD ")[2])
    done = tools.compose(str(tools.TOOLS / "docker-compose"), "config", "--format", "json")
    marker, *compose = json.loads(done.stdout)["services"]["kvstitch"]["healthcheck"]["test"]
    assert marker == "CMD"
    nothing = f"http://127.0.0.1:{free_port()}"
    for program, *arguments in (image, compose):
        assert program == "python"
        for target, code in ((url, 0), (nothing, 1)):
            there = [*arguments[:-1], moved(arguments[-1], target)]
            done = subprocess.run([sys.executable, *there], capture_output=True, text=True)
            assert done.returncode == code, done.stderr


def test_probes_and_scrape(url: str, rendered: Rendered) -> None:
    container = server(rendered["default"])["containers"][0]
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert (
            httpx.get(url + container[probe]["httpGet"]["path"], timeout=START_S).status_code == 200
        )
    (endpoint,) = one(rendered["gpu"], "ServiceMonitor")["spec"]["endpoints"]
    metrics = httpx.get(url + endpoint["path"], timeout=START_S).text
    queries = [
        t["metadata"]["query"] for t in one(rendered["keda"], "ScaledObject")["spec"]["triggers"]
    ]
    for query, name in zip(
        queries,
        ("kvstitch_requests_in_flight", "kvstitch_request_ttft_seconds_bucket"),
        strict=True,
    ):
        assert name in query and f"\n{name}" in metrics


def test_the_corpus_is_ingested_and_reaches_redis(
    url: str, redis: str, rendered: Rendered, tmp_path: Path
) -> None:
    """The side container's script, with the folder and the end of its sleep changed."""
    (corpus,) = (
        c for c in server(rendered["multi-replica"])["containers"] if c["name"] == "corpus"
    )
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "warranty.md").write_text("# Warranty\n\nThe warranty lasts two years.\n")
    shell, flag, script = corpus["args"]
    script = moved(script, url).replace("/corpus", str(folder))
    script = script.replace("/tmp/ingested", str(tmp_path / "ingested"))
    assert "exec sleep infinity" in script
    script = script.replace("exec sleep infinity", "true")
    script = script.replace(
        "kvstitch ingest", f"{shlex.quote(sys.executable)} -m kvstitch.service.cli ingest"
    )
    done = subprocess.run(
        [shell, flag, script], capture_output=True, text=True, cwd=tools.REPOSITORY, timeout=START_S
    )
    assert done.returncode == 0 and (tmp_path / "ingested").exists(), done.stderr
    status = httpx.get(url + "/status", timeout=START_S).json()
    assert status["corpus"]["documents"] == 1
    assert status["tiers"]["redis"]["healthy"] == 1
    # `ingest` waits for its job, and a job for its chunks; writing to Redis goes on behind it.
    give_up_at = time.monotonic() + START_S
    with Redis.from_url(redis) as client:
        while not client.dbsize():
            assert time.monotonic() < give_up_at, status["tiers"]
            time.sleep(0.2)
        assert all(key.startswith(b"kvstitch:{") for key in client.scan_iter())


def test_helm_test_passes_and_fails(url: str, rendered: Rendered) -> None:
    (container,) = one(rendered["default"], "Pod")["spec"]["containers"]
    program, *arguments = container["args"]
    assert program == "python"
    for target, code in ((url, 0), (f"http://127.0.0.1:{free_port()}", 1)):
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**plain(), "KVSTITCH_URL": target}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stderr


def test_redis_of_the_compose_file(ops_tools: None) -> None:
    """Its options are taken by a real server."""
    done = tools.compose(str(tools.TOOLS / "docker-compose"), "config", "--format", "json")
    program, *options = json.loads(done.stdout)["services"]["redis"]["command"]
    assert program == "redis-server"
    port = free_port()
    process = subprocess.Popen(
        [program, *options, "--port", str(port), "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL
    )
    try:
        ask = ["redis-cli", "-p", str(port), "config", "get"]
        until(
            lambda: subprocess.run([*ask, "save"], capture_output=True).returncode == 0,
            "redis", process,
        )  # fmt: skip
        for name, value in (
            ("maxmemory-policy", "allkeys-lru"),
            ("save", ""),
            ("appendonly", "no"),
        ):
            said = subprocess.run([*ask, name], capture_output=True, text=True).stdout
            assert said.split("\n")[1] == value
    finally:
        process.terminate()
        process.wait()
