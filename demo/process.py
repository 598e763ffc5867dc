"""Starts the service as a process of its own, stops it again, and finds the one that was left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from demo.client import ServiceError

START_SECONDS = 600.0
STOP_SECONDS = 30.0
LEFT = "demo.json"
"""In the data folder of a demo: its service's process and address."""


def free_port(wanted: int = 0) -> int:
    """`wanted` if nothing listens there, otherwise any port that is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
        return int(probe.getsockname()[1])


def start(
    data_dir: Path,
    port: int,
    log: Path,
    model: Path | None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> subprocess.Popen[bytes]:
    """Starts the service, and returns when it is ready. It does not get the terminal's Ctrl-C.

    Args:
        log: Where standard output and standard error of the service go.
        model: Folder that is served; none: the model inside the package.
        options: Of `serve`, besides these.

    Raises:
        ServiceError: The service ended, or was not ready after `START_SECONDS`.
    """
    command = [sys.executable, "-m", "kvstitch.service.cli", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--data-dir", str(data_dir), *options]
    if model is not None:
        command += ["--model", str(model)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        _wait_until_ready(process, port, log)
    except BaseException:
        stop(process)
        raise
    return process


@contextmanager
def service(
    data_dir: Path, port: int, log: Path, model: Path | None = None, options: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the service as `start` does, but for measuring a model's answers, also to what the
    documents do not say, and stops it when the block ends."""
    measured = {"KVSTITCH_UNANSWERABLE": "answer"} | os.environ
    process = start(data_dir, port, log, model, options, measured)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, and SIGKILL if it still runs after `STOP_SECONDS`."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def claim(data_dir: Path) -> None:
    """Makes the folder, or empties it if it is an earlier demo's.

    Raises:
        ServiceError: It holds what no demo has put there.
    """
    if (data_dir / LEFT).is_file():
        shutil.rmtree(data_dir)
    data_dir.mkdir(parents=True, exist_ok=True)
    if any(data_dir.iterdir()):
        raise ServiceError(f"{data_dir} holds files that are not the demo's: name another folder")
    (data_dir / LEFT).write_text("{}")


def note(process: subprocess.Popen[bytes], data_dir: Path, url: str) -> None:
    """Notes the service of a folder, so that `stop_left` finds it when the demo has ended."""
    (data_dir / LEFT).write_text(json.dumps({"pid": process.pid, "url": url}))


def left_running(data_dir: Path) -> str | None:
    """The address of the service that was left with this folder, if it still runs."""
    return found[1] if (found := _left(data_dir)) else None


def stop_left(data_dir: Path) -> bool:
    """Ends the service that was left, and removes its folder; False if there was none."""
    found = _left(data_dir)
    if found is not None:
        os.kill(found[0], signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while _left(data_dir) is not None:
            if time.monotonic() > deadline:
                os.kill(found[0], signal.SIGKILL)
            time.sleep(0.1)
    if (data_dir / LEFT).is_file():
        shutil.rmtree(data_dir)
    return found is not None


def _left(data_dir: Path) -> tuple[int, str] | None:
    """Process and address; a process of that number that serves something else is not ours."""
    try:
        noted = json.loads((data_dir / LEFT).read_text())
        command = Path(f"/proc/{noted['pid']}/cmdline").read_bytes().split(b"\0")
    except (OSError, KeyError):
        return None
    ours = str(data_dir).encode() in command
    return (int(noted["pid"]), str(noted["url"])) if ours else None


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
    try:
        return client.get("/health/ready").is_success  # needs no API key
    except httpx.TransportError:
        return False


def tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
