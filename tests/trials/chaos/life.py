"""One life of the service: from a start to whatever ends it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.trials.chaos.errors import Violation

START_S = 600.0  # two processes load torch on what may be a very busy machine
END_S = 60.0
CHILD = Path(__file__).parent / "child"
ROLES = ("gateway", "worker")


class Life:
    """The gateway and its worker. `doomed` from the moment on in which it may be gone."""

    def __init__(
        self, settings: dict[str, object], port: int, faults: Path, log: Path, tmp: Path
    ) -> None:
        """Starts both processes, and does not wait."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
        environment |= {f"KVSTITCH_{k.upper()}": str(v) for k, v in settings.items()}
        environment |= {"PYTHONPATH": str(CHILD), "CHAOS_FAULTS": str(faults), "TMPDIR": str(tmp)}
        command = [sys.executable, "-m", "kvstitch.service.cli", "serve", "--port", str(port)]
        self._log, self._log_from = log, log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        self.planner = bool(settings["planner"])
        self._port = port
        self.url = f"http://127.0.0.1:{port}"
        self.is_ready = False
        self.doomed = False

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait_ready(self, timeout_s: float = START_S) -> bool:
        """Wait until requests are served; False if the process ended instead.

        Raises:
            Violation: Neither happens in time.
        """
        give_up_at = time.monotonic() + timeout_s
        while not self.ended:
            if self.look_ready():
                return True
            if time.monotonic() > give_up_at:
                raise Violation(f"not ready after {timeout_s:.0f} s:\n{self.log()[-3000:]}")
            time.sleep(0.1)
        return False

    def look_ready(self) -> bool:
        """Whether it says that it serves; from the first time on it may not break a connection."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", "/health/ready")
                ready = connection.getresponse().status == 200
                self.is_ready |= ready
                return ready
        return False

    def worker(self) -> int | None:
        """The worker's process id, None while there is none."""
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for pid in map(int, task.read_text().split()):
                    if b"kvstitch.service.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
        return None

    def kill_worker(self) -> bool:
        """SIGKILL the worker; False if there was none."""
        pid = self.worker()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def kill_gateway(self) -> None:
        """SIGKILL the gateway alone; its worker notices."""
        self.doomed = True
        self.process.kill()
        self.process.wait()

    def kill_both(self) -> int:
        """SIGKILL gateway and worker; how many processes that were."""
        self.doomed = True
        worker, killed = self.worker(), int(not self.ended)
        self.process.kill()
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                killed += 1
        self.process.wait()
        return killed

    def terminate(self, times: int) -> int:
        """SIGTERM, so many times; the exit code.

        Raises:
            Violation: It does not end.
        """
        self.doomed = True
        for _ in range(times):
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired as error:
            raise Violation(f"the service lives {END_S:.0f} s after {times} SIGTERM") from error

    def log(self) -> str:
        """What it has written since its start, the end of it."""
        with self._log.open("rb") as log:
            log.seek(self._log_from)
            return log.read()[-20_000:].decode(errors="replace")


class Faults:
    """Asks a process of the service to die at a named point, or for another time of day."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def die_at(self, role: str, point: str, nth: int, after: bool) -> None:
        plan = {"id": uuid.uuid4().hex, "point": point, "nth": nth, "after": after}
        self._write(f"{role}.json", json.dumps(plan))

    def pending(self, role: str) -> bool:
        """Whether the point has not been reached yet."""
        return (self.folder / f"{role}.json").exists()

    def shift_clock(self, seconds: float) -> None:
        self._write("clock", str(seconds))

    def clear(self) -> None:
        for name in ("gateway.json", "worker.json", "clock"):
            (self.folder / name).unlink(missing_ok=True)

    def _write(self, name: str, content: str) -> None:
        temporary = self.folder / f".{name}"
        temporary.write_text(content)
        temporary.replace(self.folder / name)
