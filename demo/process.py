"""Starts the service as a subprocess on a free port, and stops it again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from demo.client import ServiceError

START_SECONDS = 600.0
STOP_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def service(
    data_dir: Path, port: int, log: Path, model: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the service and stops it when the block ends.

    It is sent SIGTERM, and SIGKILL if it still runs after `STOP_SECONDS`.

    Args:
        log: Where standard output and standard error of the service go.
        model: Folder that is served; none: the model inside the package.

    Yields:
        The process, once the service is ready.

    Raises:
        ServiceError: The service ended, or was not ready after `START_SECONDS`.
    """
    command = [sys.executable, "-m", "service.cli", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--data-dir", str(data_dir)]
    if model is not None:
        command += ["--model", str(model)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(process, port, log)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5.0) as client:
        while not _ready(client):
            if process.poll() is not None:
                raise ServiceError(f"service exited with {process.returncode}:\n{tail(log)}")
            if time.monotonic() > deadline:
                raise ServiceError(f"service not ready in {START_SECONDS:.0f} s:\n{tail(log)}")
            time.sleep(0.2)


def _ready(client: httpx.Client) -> bool:
    """Ask where no API key is needed."""
    try:
        return client.get("/health/ready").is_success
    except httpx.TransportError:
        return False


def tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
