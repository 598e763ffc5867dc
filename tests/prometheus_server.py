"""A real Prometheus for tests: its own port and folder, one target, rules of the repository.

with prometheus(target="127.0.0.1:8000", rules=folder, data=tmp_path) as server:
    server.query("up")
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.ports import free_port

START_S = 60.0
EVERY = "1s"


class PrometheusServer:
    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30)

    def query(self, expression: str) -> list[float]:
        """The values of an instant vector (or scalar) now. Raises on a wrong expression."""
        reply = self._http.get("/api/v1/query", params={"query": expression})
        said = reply.json()
        if said["status"] != "success":
            raise ValueError(f"{said['error']}: {expression}")
        data: dict[str, Any] = said["data"]
        samples = [data["result"]] if data["resultType"] == "scalar" else [
            sample["value"] for sample in data["result"]
        ]  # fmt: skip
        return [float(value) for _, value in samples]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule as last evaluated: name, health, lastError."""
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def ready(self) -> bool:
        with suppress(httpx.TransportError):
            return self._http.get("/-/ready").status_code == 200
        return False

    def close(self) -> None:
        self._http.close()


@contextmanager
def prometheus(*, target: str, rules: Path, data: Path) -> Iterator[PrometheusServer]:
    """Scrapes `target` as job kvstitch and evaluates the rules, all of it every second."""
    binary = shutil.which("prometheus")
    if binary is None:
        raise RuntimeError("prometheus is not installed: run scripts/install-prometheus.sh")
    data.mkdir(parents=True)
    for file in rules.glob("*.yml"):
        groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for group in groups:
            group["interval"] = EVERY
        (data / file.name).write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    scrape = {"job_name": "kvstitch", "static_configs": [{"targets": [target]}]}
    config = {
        "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
        "rule_files": [str(data / file.name) for file in rules.glob("*.yml")],
        "scrape_configs": [scrape],
    }
    (data / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        binary,
        f"--config.file={data / 'prometheus.yml'}",
        f"--storage.tsdb.path={data / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    log = (data / "log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    server = PrometheusServer(f"http://{address}")
    try:
        give_up_at = time.monotonic() + START_S
        while not server.ready():
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(
                    f"prometheus did not start: {(data / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.1)
        yield server
    finally:
        server.close()
        process.kill()
        process.wait()
        log.close()
