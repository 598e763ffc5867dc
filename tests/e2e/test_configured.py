"""A service that is configured by a file alone: JSON on stderr and nothing else, and a reload."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from kvstitch.service.settings import demo_model
from tests.e2e.embedding_server import embedding_settings
from tests.ports import free_port

START_S = 240.0


@pytest.mark.slow
def test_a_file_configures_logs_and_a_reload(tmp_path: Path) -> None:
    port = free_port()
    settings: dict[str, object] = {
        "model": str(demo_model()), "data_dir": str(tmp_path / "data"), "port": port, "threads": 1,
        "log_format": "json", "memory_tier_mib": 16, **embedding_settings(),
    }  # fmt: skip
    file = tmp_path / "kvstitch.toml"

    def write(**more: object) -> None:
        given = {**settings, **more}.items()
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given))

    write()
    log = tmp_path / "log"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvstitch.service.cli", "serve"],
            cwd=tmp_path, env={**environment, "KVSTITCH_CONFIG": str(file)},
            stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
        )  # fmt: skip

    def until(text: str) -> None:
        end = time.monotonic() + START_S
        while text not in log.read_text():
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            until(f"s: http://127.0.0.1:{port}/ui")
            write(max_top_k=2, threads=2)
            process.send_signal(signal.SIGHUP)
            until("max_top_k changed; only a restart changes threads")
            while http.get("/health/ready").status_code != 200:
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            refused = http.post("/v1/search", json={"query": "x", "top_k": 3})
            assert refused.status_code == 422, refused.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"kvstitch", "kvstitch.worker"} <= {line["logger"] for line in lines}
