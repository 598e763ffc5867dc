"""A server as a process of its own: started, watched over /proc, and stopped with its children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

START_S, STOP_S, REST_S = 300.0, 30.0, 120.0
POLL_S = 0.2
WINDOW_S, BUSY = 0.3, 0.1
"""At rest is who takes less than a tenth of a core for so many seconds."""


class Absent(Exception):
    """A server cannot be measured here; the message says why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ended(Exception):
    """A server ended while it was measured; the message says what its log says last."""


class ServerProcess:
    """One server and its children.

    Args:
        command: starts it.
        ready: URL that answers 200 when it is ready.
        log: file for what it prints.
        environment: set in addition to ours.
        folder: where it runs; None: here.
    """

    def __init__(
        self,
        command: Sequence[str],
        ready: str,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._command = list(command)
        self._ready = ready
        self._log = log
        self._environment = dict(environment or {})
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it is ready.

        Raises:
            Absent: it ended or was not ready in time; the message has the end of its log.
        """
        try:
            with self._log.open("wb") as output:
                self._process = subprocess.Popen(
                    self._command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | self._environment,
                    cwd=self._folder,
                )
        except OSError as error:
            raise Absent(str(error)) from error
        give_up_at = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self.stop()
                raise Absent(f"it did not start: {self._last_line()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Asks it to end, and ends what is left of it after `STOP_S`."""
        if self._process is None:
            return
        family = self.pids()
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def pids(self) -> list[int]:
        """The process and all that descend from it."""
        assert self._process is not None
        children: dict[int, list[int]] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and (stat := _stat(int(folder.name))) is not None:
                children.setdefault(int(stat[1]), []).append(int(folder.name))
        found = [self._process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found

    def cpu_s(self) -> float:
        """Processor seconds of all of them so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        stats = [stat for pid in self.pids() if (stat := _stat(pid)) is not None]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / ticks

    def rest(self) -> None:
        """Waits until it computes no more, at most `REST_S`: servers also work after an answer.

        Raises:
            Ended: the process is gone.
        """
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise Ended(f"exit status {code}: {self._last_line()}")
        give_up_at = time.monotonic() + REST_S
        before = self.cpu_s()
        while time.monotonic() < give_up_at:
            time.sleep(WINDOW_S)
            now = self.cpu_s()
            if now - before < BUSY * WINDOW_S:
                return
            before = now

    def memory_mib(self) -> float:
        """Memory of all of them; what they share counts once."""
        return sum(_pss_kib(pid) for pid in self.pids()) / 1024

    def _is_ready(self) -> bool:
        try:
            return httpx.get(self._ready, timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it printed nothing"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name: state, parent, …; None: it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _pss_kib(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
