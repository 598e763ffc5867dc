"""A vLLM of the service's own: started beside its worker, again when it has ended, and ended with
it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvstitch.service.errors import InvalidSetting

logger = logging.getLogger(__name__)

HAS_VLLM = "import importlib.util as u; s = u.find_spec('vllm'); exit(not (s and s.origin))"
AGAIN_S = 10.0  # between two starts
STOP_S = 15.0
LOG_BYTES = 2048  # of its end, in which the last line is looked for


class OwnVllm:
    """One process and its children; it may not run.

    Raises:
        InvalidSetting: No vLLM can be started.
    """

    def __init__(self, settings: Any, model_folder: Path) -> None:
        if settings.worker_addresses:
            raise InvalidSetting(
                "engine vllm starts a vLLM only beside workers of its own: set engine_url"
            )
        self._python = _python(settings.vllm_python)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.api_key = secrets.token_urlsafe(32)  # others on this machine have none
        self._settings, self._model = settings, model_folder.resolve()
        self.log = Path(settings.data_dir).resolve() / "vllm.log"
        self._process: Process | None = None
        self._started = -AGAIN_S

    def _command(self, dtype: str) -> list[str]:
        connector = {
            "kv_connector": "StitchedKv",
            "kv_connector_module_path": "kvstitch_vllm.connector",
            "kv_role": "kv_consumer",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"folder": str(self._settings.hand_over_dir)},
        }
        return [
            *(self._python, "-m", "kvstitch_vllm.serve", "--model", str(self._model)),
            *("--host", "127.0.0.1", "--port", str(self._port), "--dtype", dtype),
            *("--max-model-len", "auto", "--enable-prompt-tokens-details"),
            *("--structured-outputs-config", json.dumps({"backend": "guidance"})),
            *("--kv-transfer-config", json.dumps(connector)),
            *shlex.split(self._settings.vllm_args),
        ]

    async def keep(self, dtype: str) -> bool:
        """Start it if it does not run; return whether it was started."""
        ended = self._process is None or self._process.returncode is not None
        if not ended or time.monotonic() < self._started + AGAIN_S:
            return False
        if self._process is not None:
            logger.error("vLLM has ended (code %s)%s", self._process.returncode, self.said())
        await self.close()
        self._started = time.monotonic()
        # What vLLM imports of kvstitch, and nothing else of this environment.
        packages = self.log.with_name("vllm")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
        kept |= {"PYTHONPATH": str(packages), "VLLM_API_KEY": self.api_key}
        try:
            packages.mkdir(exist_ok=True)
            (packages / __package__).unlink(missing_ok=True)
            (packages / __package__).symlink_to(Path(__file__).parent)
            with self.log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command(dtype), stdin=PIPE, stdout=log, stderr=STDOUT, env=kept,
                    start_new_session=True, cwd=packages,
                )  # fmt: skip
        except OSError as error:
            logger.error("vLLM cannot be started: %s", error)
            return False
        logger.info("vLLM is started, its log is %s", self.log)
        return True

    def said(self) -> str:
        """Return where its log is and the last line there."""
        with suppress(OSError):
            lines = self.log.read_bytes()[-LOG_BYTES:].decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "nothing yet")
            return f"; its log is {self.log}, and ends: {last}"
        return ""

    async def close(self) -> None:
        """End it and all its children."""
        if (process := self._process) is None:
            return
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        self._process = None


def _python(named: str) -> str:
    python = named or sys.executable
    why = f"{python} has none"
    try:
        if subprocess.run([python, "-I", "-c", HAS_VLLM], timeout=60).returncode == 0:
            return python
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    raise InvalidSetting(
        f"engine vllm without engine_url starts a vLLM, and {why}: set vllm_python to the Python "
        "of an environment with vLLM 0.30 to 0.32, or engine_url to a vLLM that runs"
    )
