"""`kvstitch worker` as a process, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests import preloaded

STOP_S = 90.0


class SharedWorker:
    """One worker that runs by itself at an address; it can be ended in two ways, and started again.

    Args:
        settings: those of service.settings.
    """

    def __init__(self, address: str, folder: Path, **settings: object) -> None:
        self.address = address
        self._settings = {"threads": 1, "planner": False, "prefix_cache": False, **settings}
        self._log = folder / f"worker-{address.rpartition(':')[2]}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, unless it runs; does not wait until it has loaded its model."""
        if self._process is not None and self._process.poll() is None:
            return
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
        environment |= {f"KVSTITCH_{k.upper()}": str(v) for k, v in self._settings.items()}
        command = [
            *preloaded.python(),
            "-m",
            "kvstitch.service.cli",
            "worker",
            "--listen",
            self.address,
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def drain(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S)

    def kill_nine(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """If it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill_nine()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]
