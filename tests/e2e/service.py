"""The service as its users meet it: a process that speaks HTTP, with a worker of its own.

with Service(model, data_dir) as service:
    service.ingest(documents)
    service.ask("How long is the warranty?")
    service.kill_nine()
    service.start()
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx

from kvstitch.client import server_sent_events as events
from kvstitch.service.gateway.auth.keys import KeyStore
from tests import preloaded
from tests.e2e.embedding_server import embedding_settings
from tests.e2e.metrics import Metrics
from tests.ports import free_port
from tests.preloaded import real_pid

START_S = 180.0  # two processes load torch on what may be one busy core
HANG_S = 120.0  # no answer of a test takes nearly as long; this is what "it hangs" means
POLL_S = 0.1

Event = tuple[str, dict[str, Any]]


class Service:
    """One service on one data folder; it can be killed and started again."""

    def __init__(self, model: Path, data_dir: Path, **settings: object) -> None:
        """`settings` are those of service.settings, e.g. memory_tier_mib=0.

        It embeds by tests.e2e.embedding_server, unless it is given an `embedder_url`;
        `**IN_PROCESS` means that it embeds by itself.
        """
        self.data_dir = data_dir
        self._operator: dict[str, str] = {}
        self.port = free_port()
        # Without the planner: on a busy machine a tier is late, and a hit would be computed.
        # Without the prefix cache: many tests ask twice to see where chunks come from.
        # From whatever is found: many questions are about nothing.
        defaults: dict[str, object] = {"threads": 1, "planner": False, "prefix_cache": False,
                                       "unanswerable": "answer"}  # fmt: skip
        if "embedder_url" not in settings:
            defaults |= embedding_settings()
        self._settings = {**defaults, **settings, "model": model, "data_dir": data_dir}
        self._log = data_dir.with_name(data_dir.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=HANG_S, verify=False
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self.kill_nine()
        self.http.close()

    def configure(self, **settings: object) -> None:
        """Other settings from the next start on."""
        self._settings |= settings

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start both processes and wait until requests are served."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
        environment |= {f"KVSTITCH_{k.upper()}": str(v) for k, v in self._settings.items()}
        serve = ("-m", "kvstitch.service.cli", "serve", "--port", str(self.port))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*preloaded.python(), *serve],
                stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        self.wait_ready()

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self._process is not None and self._process.poll() is None, self.log()
            with contextlib.suppress(httpx.TransportError):
                return self.http.get("/health/ready").status_code == 200
            return False

        self.until(ready, "the service is not ready", START_S)

    def kill_nine(self) -> None:
        """SIGKILL gateway and worker at the same moment: nobody gets to tidy up."""
        assert self._process is not None
        worker = None
        with contextlib.suppress(httpx.HTTPError):
            worker = self.worker_pid()
        for pid in (self.gateway_pid(), worker):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        if worker is not None:
            self.until(lambda: not _alive(worker), "the worker outlives SIGKILL")

    def sigterm(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def exit_code(self, timeout: float = HANG_S) -> int:
        """Wait for the gateway to end."""
        assert self._process is not None
        code = self._process.wait(timeout)
        self._process = None
        return code

    def gateway_pid(self) -> int:
        assert self._process is not None
        return real_pid(self._process.pid)

    def worker_pid(self) -> int | None:
        pid: int | None = self.http.get("/status").json()["worker"]["pid"]
        return None if pid is None else real_pid(pid)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    # -- use -------------------------------------------------------------------------------------

    def ingest(self, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Hand documents in and wait until their KV is stored; the finished job."""
        reply = self.http.post("/admin/precompute", json={"documents": list(documents)})
        assert reply.status_code == 202, reply.text
        path = f"/admin/jobs/{reply.json()['job_id']}"
        job: dict[str, Any] = {}

        def ended() -> bool:
            job.update(self.http.get(path).json())
            return job["state"] not in ("queued", "running")

        self.until(ended, "the ingest job does not end", START_S)
        assert job["state"] == "succeeded", job
        return job

    def post(self, question: str, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/rag/generate", json={"question": question, **fields})

    def ask(self, question: str, **fields: Any) -> dict[str, Any]:
        """The JSON answer, greedy unless asked otherwise."""
        reply = self.post(question, **fields)
        assert reply.status_code == 200, (reply.text, self.log())
        answer: dict[str, Any] = reply.json()
        return answer

    @contextmanager
    def stream(self, question: str, **fields: Any) -> Iterator[Iterator[Event]]:
        """The events of a streamed answer as they come; leaving early disconnects."""
        body = {"question": question, "stream": True, **fields}
        with self.http.stream("POST", "/v1/rag/generate", json=body) as reply:
            assert reply.status_code == 200, reply.read()
            assert reply.headers["content-type"].startswith("text/event-stream")
            yield events(reply.iter_lines())

    @contextmanager
    def asking(self, path: str, body: dict[str, Any]) -> Iterator[None]:
        """A client that has sent a request, and leaves at the end without its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        try:
            sent = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), sent)
            yield
        finally:
            connection.close()

    def until_it_decodes(self) -> None:
        """Wait until the worker has reported more decode steps than it has now."""
        before = self.metrics().value("kvstitch_decode_steps_total")
        self.until(partial(self._decoded_since, before), "nothing is decoded")

    def metrics(self) -> Metrics:
        reply = self.http.get("/metrics", headers=self._operator)
        if reply.status_code == 403:  # its own client is a tenant's
            with contextlib.closing(KeyStore(self.data_dir / "keys.sqlite3")) as store:
                store.start()
                self._operator = {"Authorization": f"Bearer {store.create(name='metrics')[0]}"}
            return self.metrics()
        return Metrics.parse(reply.text)

    def settled_metrics(self) -> Metrics:
        """A scrape whose worker counters are younger than everything asked before this call.

        The worker reports once a second. A request of our own shows in the second report at the
        latest; nothing of ours may write, so it has no documents. A report may come in the middle
        of one of them, so only the third is surely younger than the end of the first, and than
        what ran in the background before it.
        """
        for _ in range(3):
            before = self.metrics().value("kvstitch_decode_steps_total")
            self.ask("settle", top_k=0, max_tokens=3)
            self.until(partial(self._decoded_since, before), "the worker's counters do not arrive")
        return self.metrics()

    def _decoded_since(self, before: float) -> bool:
        return self.metrics().value("kvstitch_decode_steps_total") > before

    def until(self, holds: Callable[[], bool], claim: str, timeout: float = HANG_S) -> None:
        """Poll until it holds; fails with `claim` and the service's log."""
        give_up_at = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < give_up_at, f"{claim}\n{self.log()}"
            time.sleep(POLL_S)

    def wrote(self, tier: str, chunks: int) -> bool:
        """Whether that many writes to a tier have succeeded since the start."""
        labels = {"tier": tier, "op": "write", "outcome": "ok"}
        return self.metrics().value("kvstitch_tier_operations_total", **labels) >= chunks

    def chunk_files(self) -> set[Path]:
        """Chunks on SSD."""
        return set((self.data_dir / "kv").glob("??/??/*.safetensors"))


def tiers(answer: dict[str, Any]) -> list[str]:
    """Where each document's KV came from, in prompt order."""
    return [document["tier"] for document in answer["cache"]["documents"]]


def _alive(pid: int) -> bool:
    """False also for a zombie that its new parent has not waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # gone, or going while it is read
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
