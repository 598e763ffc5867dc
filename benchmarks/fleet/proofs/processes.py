"""The service's own processes of a fleet: gateways, and workers that run by themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import httpx

START_S = 300.0  # on a machine that does much else
TIMEOUT_S = 60.0
POLL_S = 0.1


class FleetFailed(Exception):
    """A process of the fleet does not do what it must; the message says which and its log."""


class ServiceProcess:
    """One process of the service, which can be killed and started again on the same data."""

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        """Nothing is started yet.

        Args:
            command: what follows `python -m service.cli`.
            environment: its settings.
            folder: for its log.
        """
        self.name = name
        self.is_away = True  # from a kill until `note_ready`
        self._killed_at: list[float] = []  # time.monotonic()
        self._command = [sys.executable, "-m", "service.cli", *command]
        self._environment = dict(environment)
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and do not wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self.is_away = True
            self._killed_at.append(time.monotonic())
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Start it again, and do not wait."""
        self.start()

    def is_back(self) -> bool:
        """Whether it runs; that it serves is for its peers to say."""
        return self._process is not None

    def check(self) -> None:
        """
        Raises:
            FleetFailed: It was started and has ended, and nobody killed it.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            raise FleetFailed(f"{self.name} ended with code {code}:\n{self.log()}")

    def note_ready(self) -> None:
        """From now on it may not break a connection, until it is killed."""
        self.is_away = False

    def was_away_after(self, moment: float) -> bool:
        """Whether it has been killed since (time.monotonic()), or does not serve yet."""
        return self.is_away or any(at >= moment for at in self._killed_at)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


class Gateway(ServiceProcess):
    """A gateway on a port that stays the same."""

    def __init__(self, name: str, port: int, environment: Mapping[str, str], folder: Path) -> None:
        super().__init__(name, ["serve", "--port", str(port)], environment, folder)
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=TIMEOUT_S)

    def workers(self) -> list[dict[str, object]]:
        """What it says of its workers; empty if it does not answer."""
        with contextlib.suppress(httpx.TransportError, ValueError, KeyError):
            workers: list[dict[str, object]] = self.http.get("/status").json()["workers"]
            return workers
        return []

    def is_ready(self, workers: int) -> bool:
        """Whether it serves, and so many workers with it."""
        with contextlib.suppress(httpx.TransportError):
            ready = self.http.get("/health/ready").status_code == 200
            return ready and sum(w["reason"] is None for w in self.workers()) >= workers
        return False


class StandaloneWorker(ServiceProcess):
    """A worker that runs by itself: `kvstitch worker`, and the process that it supervises."""

    def __init__(
        self, name: str, address: str, environment: Mapping[str, str], folder: Path
    ) -> None:
        super().__init__(name, ["worker", "--listen", address], environment, folder)
        self._log_from = 0

    def kill(self) -> None:
        """SIGKILL both at once: nobody gets to tidy up."""
        if self.pid is None:
            return
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        for child in map(int, listed.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        super().kill()

    def restart(self) -> None:
        self._log_from = self._log.stat().st_size
        self.start()

    def is_back(self) -> bool:
        """Whether it says that it serves. Its gateways may not have noticed that it was away."""
        with self._log.open("rb") as log:
            log.seek(self._log_from)
            return b" serving " in log.read()


class ChildWorker:
    """A worker that a gateway started, and starts again."""

    def __init__(self, gateway: Gateway, number: int) -> None:
        self.name = f"worker {number} of {gateway.name}"
        self._gateway, self._number = gateway, number
        self._killed: int | None = None

    def kill(self) -> None:
        """SIGKILL.

        Raises:
            FleetFailed: There is none.
        """
        workers = self._gateway.workers()
        pid = workers[self._number].get("pid") if len(workers) > self._number else None
        if not isinstance(pid, int):
            raise FleetFailed(f"{self.name} does not run")
        self._killed = pid
        os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """Its gateway does it."""

    def is_back(self) -> bool:
        workers = self._gateway.workers()
        return len(workers) > self._number and workers[self._number].get("pid") != self._killed


def environment(settings: Mapping[str, object], **others: str) -> dict[str, str]:
    """Variables of a process with these settings (those of service.settings)."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
    return inherited | others | {f"KVSTITCH_{k.upper()}": str(v) for k, v in settings.items()}


def until(holds: Callable[[], bool], claim: str, timeout_s: float = START_S) -> float:
    """Poll until it holds; the seconds that took.

    Raises:
        FleetFailed: It never does.
    """
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout_s:
            raise FleetFailed(f"{claim}, after {timeout_s:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - began


def end_on_sigterm() -> None:
    """Let SIGTERM end this process like Ctrl-C, so that it ends what it started."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
