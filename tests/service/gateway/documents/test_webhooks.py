"""The webhook: what a real HTTP server receives, and what is owed when it does not answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from service.errors import InvalidSetting
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.documents.jobs.webhooks import EventStore, WebhookSender
from service.gateway.prometheus import GatewayMetrics
from service.gateway.service_database import jobs_database
from service.gateway.tables import events as events_table
from service.settings import load
from tests.service.gateway.rig import DOCUMENTS, HANG_S, running, until

SECRET = "a secret of 16 characters"


@dataclass
class Receiver:
    """A server that answers with `statuses` one after the other, then with 204."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.received]

    def check_signatures(self) -> None:
        """As a receiver would, from the documentation alone."""
        for headers, body in self.received:
            signed = headers["Kvstitch-Timestamp"].encode() + b"." + body
            right = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
            assert headers["Kvstitch-Signature"] == f"sha256={right}"
            assert abs(time.time() - int(headers["Kvstitch-Timestamp"])) < 600
            assert headers["Kvstitch-Event-Id"] == json.loads(body)["event_id"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.received.append((dict(self.headers), body))
            self.send_response(found.statuses.pop(0) if found.statuses else 204)
            self.send_header("Location", found.url)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


def settings(receiver: Receiver) -> dict[str, Any]:
    return {"webhook_url": receiver.url, "webhook_secret": SECRET}


def test_every_job_that_ends_is_told_once(folder: Path, data: Path, receiver: Receiver) -> None:
    with running(folder, data, **settings(receiver)) as rig:
        good = rig.ingest()
        bad = rig.http.post(
            "/admin/precompute", content=b"%PDF-1.4", headers={"Content-Type": "application/pdf"},
            params={"doc_id": "bad"},
        ).json()  # fmt: skip
        failed = rig.finished(bad["job_id"])
        until(lambda: len(receiver.received) == 2, "both are told")
        until(lambda: rig.metric("kvstitch_webhooks_total", outcome="delivered") == 2, "counted")
        first, second = receiver.bodies()
        assert (first["type"], first["tenant"]) == ("job.ended", "")
        for told, job in ((first["job"], good), (second["job"], failed)):
            assert {name: job[name] for name in told} == told
        assert second["job"]["state"] == "failed"
        receiver.check_signatures()
        assert len({body["event_id"] for body in receiver.bodies()}) == 2
    time.sleep(0.2)
    with running(folder, data, **settings(receiver)):
        time.sleep(1.5)
        assert len(receiver.received) == 2, "what was delivered is not owed any more"


def test_a_restart_sends_what_is_owed(folder: Path, data: Path, receiver: Receiver) -> None:
    away: dict[str, Any] = {"webhook_url": "http://127.0.0.1:9/nobody", "webhook_secret": SECRET}
    with running(folder, data, **away) as rig:
        job = rig.ingest()
        until(lambda: rig.metric("kvstitch_webhooks_total", outcome="retried") == 1, "in vain")
    database = jobs_database(data / "jobs.sqlite3")
    database.start()
    with database.write() as write:  # instead of waiting for five seconds
        write.execute(events_table.update().values(due=0))
    database.close()
    with running(folder, data, **settings(receiver)):
        until(lambda: receiver.received, "it is told")
        assert receiver.bodies()[0]["job"]["job_id"] == job["job_id"]


def test_without_a_webhook_nothing_is_owed(folder: Path, data: Path, receiver: Receiver) -> None:
    with running(folder, data) as rig:
        rig.ingest(DOCUMENTS)
    with running(folder, data, **settings(receiver)):
        time.sleep(1.5)
    assert not receiver.received


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventStore]:
    """One job that has ended."""
    database = jobs_database(tmp_path / "jobs.sqlite3")
    database.start()
    store = JobStore(database, SpoolFolder(tmp_path / "spool"), with_events=True)
    job_id = store.begin("red")
    store.spool(job_id, [IngestDocument("d", "default", "text", b"words")])
    store.accept(job_id, None, b"")
    store.cancel(job_id)
    store.cancel(job_id)  # it has ended already
    yield EventStore(database)
    database.close()


def owed(events: EventStore) -> int:
    return len(events.due(time.time() + 1e6, 100))


@pytest.mark.parametrize("statuses", [[500, 404, 302], [301]])
async def test_it_is_tried_again_with_longer_pauses(
    events: EventStore, receiver: Receiver, statuses: list[int]
) -> None:
    receiver.statuses = list(statuses)
    metrics = GatewayMetrics({})
    sender = WebhookSender(events, receiver.url, SECRET, metrics, first_retry_s=0.1)
    began = time.monotonic()
    sender.start()
    try:
        await until_async(lambda: owed(events) == 0)
    finally:
        await sender.close()
    assert time.monotonic() - began > 0.8 * 0.1 * (2 ** len(statuses) - 1)
    assert len(receiver.received) == len(statuses) + 1
    assert len({body for _, body in receiver.received}) == 1, "the same event"
    assert receiver.bodies()[0]["tenant"] == "red"
    assert receiver.bodies()[0]["job"]["state"] == "cancelled"
    receiver.check_signatures()
    counts = {o: count(metrics, o) for o in ("delivered", "retried", "failed")}
    assert counts == {"delivered": 1, "retried": len(statuses), "failed": 0}


async def test_it_is_given_up(events: EventStore, receiver: Receiver) -> None:
    receiver.statuses = [500] * 100
    metrics = GatewayMetrics({})
    sender = WebhookSender(events, receiver.url, SECRET, metrics, first_retry_s=0.05, give_up_s=600)
    sender.start()
    try:
        await until_async(lambda: count(metrics, "retried") >= 2)
        sender._give_up_s = 0.0  # so much time has passed
        await until_async(lambda: owed(events) == 0)
    finally:
        await sender.close()
    assert count(metrics, "failed") == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://no.such.host.invalid/", "http://["])
async def test_a_url_that_leads_nowhere(events: EventStore, url: str) -> None:
    metrics = GatewayMetrics({})
    sender = WebhookSender(events, url, SECRET, metrics, first_retry_s=30)
    sender.start()
    try:
        await until_async(lambda: count(metrics, "retried") == 1)
    finally:
        await sender.close()
    assert owed(events) == 1


def count(metrics: GatewayMetrics, outcome: str) -> float:
    value = metrics.registry.get_sample_value("kvstitch_webhooks_total", {"outcome": outcome})
    assert value is not None
    return value


async def until_async(condition: Any) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "given",
    [
        {"webhook_url": "http://hook"},
        {"webhook_url": "http://hook", "webhook_secret": "short"},
        {"webhook_url": "ftp://hook", "webhook_secret": SECRET},
    ],
)
def test_wrong_settings(given: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="webhook_"):
        load(**given)
