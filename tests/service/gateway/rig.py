"""A whole gateway on a real port, with a fake worker on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from kvstitch.client import server_sent_events
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.server import DrainingServer, make_server
from kvstitch.service.gateway.workers import ProcessOptions
from kvstitch.service.settings import load
from tests.fakes.models import HashingEmbedder
from tests.fakes.worker import FakeWorker

T = TypeVar("T")
ANYTHING = {"unanswerable": "answer"}
HANG_S = 180.0  # nothing takes nearly as long, on a busy machine either
DOCUMENTS = [
    {"doc_id": "oslo", "title": "Oslo", "text": "Oslo is the capital of Norway, by the fjord."},
    {"doc_id": "bergen", "title": "Bergen", "text": "Bergen is rainy and has a fish market."},
    {"doc_id": "rome", "title": "Rome", "text": "Rome is the capital of Italy, on the Tiber."},
]


class Rig:
    """`http` talks to the service, `worker` is the fake (None if it is a process)."""

    def __init__(self, gateway: Gateway, worker: FakeWorker | None) -> None:
        self.gateway = gateway
        self.worker = worker
        self._server: DrainingServer = make_server(gateway)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        # Reading the certificates of the system would take as long as all else here.
        self.http = httpx.Client(timeout=HANG_S, verify=False)
        self.failure: BaseException | None = None

    def start(self, *, wait_ready: bool = True) -> None:
        self._thread.start()
        assert self._started.wait(HANG_S), "the service did not start"
        if self.failure is not None:
            raise self.failure
        (listening,) = self._server.servers[0].sockets
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.http.base_url = httpx.URL(self.url)
        if wait_ready:
            self.wait_ready()

    def stop(self) -> None:
        self.http.close()
        if self._thread.is_alive():
            self._server.should_exit = True
            self._thread.join(HANG_S)
            assert not self._thread.is_alive(), "the service did not stop"

    def call(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function on the service's loop."""

        async def go() -> T:
            return await run()

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(HANG_S)

    def lose_worker(self) -> None:
        """End the fake, and wait until the service has noticed it: see `heartbeat_timeout_s`."""
        assert self.worker is not None
        self.call(self.worker.stop)
        until(lambda: self.http.get("/health/ready").status_code == 503, "worker lost")

    def wait_ready(self) -> None:
        until(lambda: self.http.get("/health/ready").status_code == 200, "ready")

    def ingest(
        self, documents: Sequence[dict[str, Any]] = DOCUMENTS, source: str = ""
    ) -> dict[str, Any]:
        response = self.http.post(
            "/admin/precompute", json={"documents": list(documents)}, params={"source": source}
        )
        assert response.status_code == 202, response.text
        return self.finished(response.json()["job_id"])

    def finished(self, job_id: str) -> dict[str, Any]:
        def job() -> dict[str, Any] | None:
            found = self.http.get(f"/admin/jobs/{job_id}").json()
            return found if found["state"] not in ("queued", "running") else None

        return until(job, f"job {job_id}")

    def ask(self, **body: Any) -> httpx.Response:
        return self.http.post(
            "/v1/rag/generate", json={"question": "What is the capital of Norway?", **body}
        )

    def stream(self, **body: Any) -> list[tuple[str, Any]]:
        """All events of a streamed answer."""
        asked = {"question": "What is the capital of Norway?", "stream": True, **body}
        with self.http.stream("POST", "/v1/rag/generate", json=asked) as response:
            assert response.status_code == 200, response.read()
            return list(events(response))

    def metric(self, name: str, **labels: str) -> float:
        value = self.gateway.metrics.registry.get_sample_value(name, labels)
        return 0.0 if value is None else value

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            if self.worker is not None:
                await self.worker.start()
            self._server.main_loop = self._until_stopped  # type: ignore[method-assign]
            self._server.shutdown = self._shut_down  # type: ignore[method-assign]
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            self._started.set()
            await serving
        except BaseException as error:
            self.failure = error
        finally:
            self._started.set()
            if self.worker is not None:
                await self.worker.stop()

    async def _until_stopped(self) -> None:
        """uvicorn's loop, which looks ten times a second only whether it shall end."""
        counter = 0
        while not await self._server.on_tick(counter):
            await asyncio.sleep(0.01)
            counter += 1

    async def _shut_down(self, sockets: list[socket.socket] | None = None) -> None:
        """Where no client is there uvicorn would wait for none for a tenth of a second."""
        for _ in range(10):
            if not self._server.server_state.connections:
                for server in self._server.servers:
                    server.close()
                return await self._server.lifespan.shutdown()
            await asyncio.sleep(0.005)
        await type(self._server).shutdown(self._server, sockets)


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    return server_sent_events(response.iter_lines())


def until(condition: Callable[[], T | None], what: str, timeout_s: float = HANG_S) -> T:
    """The first true value of `condition`."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"timed out: {what}")


async def until_true(condition: Callable[[], object], what: str) -> None:
    """Wait on an event loop until `condition` holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + HANG_S
    while not condition():
        assert loop.time() < end, f"timed out: {what}"
        await asyncio.sleep(0.02)


@contextmanager
def asking(
    rig: Rig, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> Iterator[None]:
    """A client that has sent a request, and leaves at the end of the block without its answer."""
    address = httpx.URL(rig.url)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=HANG_S)
    sent = {"Content-Type": "application/json", **(headers or {})}
    connection.request("POST", path, json.dumps(body), sent)
    try:
        yield
    finally:
        connection.close()


def pinged(lines: Iterator[str], worker: FakeWorker, pings: int = 2) -> str:
    """All of a stream whose worker is held until there were so many pings."""
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if seen.count(": ping") >= pings:
            worker.held = False
    return "\n".join(seen)


@contextmanager
def running(
    folder: Path,
    data: Path,
    *,
    worker: FakeWorker | None = None,
    command: Sequence[str] = (),
    wait_ready: bool = True,
    embedder: HashingEmbedder | None = None,
    heartbeat_timeout_s: float = 4.0,
    **settings: Any,
) -> Iterator[Rig]:
    """A rig between start and stop; with `command` the worker is a supervised process. Answers are
    given from whatever is found: questions of most tests are about nothing."""
    address = f"ipc://{data}/w.sock"
    data.mkdir(parents=True, exist_ok=True)
    if not command:
        worker = worker or FakeWorker(address)
        worker.address = address
    options: dict[str, Any] = {"command": command} if command else {}
    gateway = Gateway(
        load(**{"model": str(folder), "data_dir": data, "port": 0, **ANYTHING, **settings}),
        folder,
        embedder=embedder or HashingEmbedder(),
        processes=ProcessOptions(
            address="" if command else address,
            # A busy machine may leave the fake worker waiting. The end of a process is noticed.
            heartbeat_timeout_s=60.0 if command else heartbeat_timeout_s,
            restart_backoff_s=(0.05, 0.2),
            **options,
        ),
    )
    rig = Rig(gateway, worker)
    try:
        rig.start(wait_ready=wait_ready)
        yield rig
    finally:
        rig.stop()
