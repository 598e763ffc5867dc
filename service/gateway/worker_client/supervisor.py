"""Starts one worker process and keeps it alive.

The worker gets a pipe as stdin and exits when it is closed, so it cannot outlive the gateway, not
even one that was killed. It has a process group of its own: Ctrl-C at a terminal reaches only the
gateway, which lets streams finish first.
"""

import asyncio
import codecs
import contextlib
import logging
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.worker_client import sockets
from kvstitch.service.gateway.worker_client.connection import RESTARTED, WorkerConnection
from kvstitch.service.shared import logs, resources
from kvstitch.service.shared.worker_settings import WorkerSettings

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "kvstitch.service.worker")
REFUSED = 3  # exit code of a worker that will never start with this model or these settings
HEALTHY_AFTER_S = 60  # a worker that lived so long is restarted after the shortest pause
_TAIL_BYTES = 8192


class Supervisor:
    """Starts the worker, restarts it when it dies or falls silent, and stops it at the end.

    Args:
        connection: Connected to every new worker.
        settings: Makes the worker's settings for an address.
        on_refused: Called with the reason if the worker will never start.
        on_restart: Called before every start but the first.
        command: Starts the worker process.
        backoff_s: First and longest pause between two starts.
        stop_timeout_s: How long a worker may take to finish before it is terminated.
        next_address: Returns the address of the next worker, given that of the one before, ""
            for the first; None: sockets in a folder of this process.
        environment: Variables of the worker that go before those of this process.

    Attributes:
        address: Of the worker that runs, or ran last; "" before the first.
        restarts: How often the worker was started again.
        last_end: Why the worker before ended; "" if none has.
    """

    def __init__(
        self,
        connection: WorkerConnection,
        settings: Callable[[str], WorkerSettings],
        *,
        on_refused: Callable[[str], None],
        on_restart: Callable[[], None] = lambda: None,
        command: Sequence[str] = COMMAND,
        backoff_s: tuple[float, float] = (0.5, 30.0),
        stop_timeout_s: float = 30.0,
        next_address: Callable[[str], str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._on_refused = on_refused
        self._on_restart = on_restart
        self._command = tuple(command)
        self._backoff_s = backoff_s
        self._stop_timeout_s = stop_timeout_s
        self._next_address = next_address
        self._environment = dict(environment or {})
        self._draining = asyncio.Event()
        self.address = ""
        self.restarts = 0
        self.last_end = ""
        self._folder: Path | None = None
        self._folder_lock = -1
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The running worker's process id, None if there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Begin; does not wait until the worker is ready."""
        if self._next_address is None:
            self._folder, self._folder_lock = sockets.make_folder()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_end)

    async def stop(self) -> None:
        """Ask the worker to finish, wait, then terminate it, then kill it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._process is not None:
            self._connection.shutdown()
            await self._end(self._process, self._stop_timeout_s)
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._folder_lock)

    async def drain(self) -> None:
        """Let the worker finish what runs; return when it has ended. No other is started."""
        self._draining.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the worker cannot be started", exc_info=error)
            reason = error.message if isinstance(error, KvstitchError) else str(error)
            self._on_refused(f"the worker cannot be started: {reason}")

    async def _run(self) -> None:
        pause, longest = self._backoff_s
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if self._next_address is None:
                self.address = f"ipc://{self._folder}/worker-{self.restarts + 1}.sock"
            else:
                self.address = self._next_address(self.address)
            code, last_line = await self._run_once(self.address)
            self._connection.disconnect(RESTARTED)
            if self._draining.is_set():
                return
            if code == REFUSED:
                self._on_refused(last_line or "the worker refused to start and gave no reason")
                return
            if loop.time() - began > HEALTHY_AFTER_S:
                pause = self._backoff_s[0]
            self.last_end = f"the process ended (code {code}): {last_line or 'it gave no reason'}"
            logger.error("the worker ended (code %s); again in %.1f s: %s", code, pause, last_line)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), pause)
                return
            pause = min(2 * pause, longest)
            self.restarts += 1
            self._on_restart()

    async def _run_once(self, address: str) -> tuple[int, str]:
        """Run the worker once; returns its exit code and the last line it wrote to stderr."""
        # In a group of its own, so that a terminal's Ctrl-C is not meant for it; in our session,
        # because Linux weighs sessions against one another, and niceness only within one.
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stderr=PIPE,
            process_group=0,
            env={**resources.TORCH_ENVIRONMENT, **os.environ, **self._environment},
        )
        self._process = process
        if self._draining.is_set():
            process.terminate()
        assert process.stdin is not None
        process.stdin.write(self._settings(address).to_json().encode() + b"\n")
        tail = asyncio.create_task(forward_stderr(process))
        self._connection.connect(address)
        silence = asyncio.create_task(self._connection.silent.wait())
        exited = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({exited, silence}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await self._end(process, 0)
            self._process = None
            return await exited, await tail
        finally:
            silence.cancel()

    async def _end(self, process: Process, patience_s: float) -> None:
        for act, wait_s in ((None, patience_s), (process.terminate, 5.0), (process.kill, None)):
            if act is not None:
                with contextlib.suppress(ProcessLookupError):
                    act()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), wait_s)
                return


async def forward_stderr(process: Process) -> str:
    """Pass a worker's stderr on to ours; returns its last line that is not empty."""
    assert process.stderr is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    tail = b""
    while chunk := await process.stderr.read(65536):
        sys.stderr.write(decoder.decode(chunk))
        sys.stderr.flush()
        tail = (tail + chunk)[-_TAIL_BYTES:]
    lines = [line for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
    return logs.message_of(lines[-1].strip()) if lines else ""
