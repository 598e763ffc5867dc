"""Two gateways over one PostgreSQL, and workers of their own life that both use over TCP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Documents
from tests.e2e.service import Service
from tests.e2e.shared_worker import SharedWorker
from tests.ports import free_ports
from tests.postgresql_server import PostgresqlServer

SECRET = "0123456789abcdef" * 2
QUESTION = "What is it famous for?"
CLIENTS = 4
LOADING_S = 300.0


@dataclass
class Fleet:
    """`workers` are listed, three of them, whether they run or not."""

    gateways: list[Service]
    workers: list[SharedWorker]
    documents: list[str]

    def ready(self, *addresses: str) -> bool:
        """Whether all gateways have exactly these."""
        return all(_ready(gateway) == set(addresses) for gateway in self.gateways)

    def wait(self, *workers: SharedWorker) -> None:
        addresses = [worker.address for worker in workers]
        self.gateways[0].until(
            lambda: self.ready(*addresses), f"not all are ready: {addresses}", LOADING_S
        )


def _ready(gateway: Service) -> set[str]:
    states = gateway.http.get("/status").json()["workers"]
    return {s["address"] for s in states if s["reason"] is None and not s["draining"]}


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory,
    model: Path,
    twelve: Documents,
    postgresql_server: PostgresqlServer,
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("shared-workers")
    addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports(3)]
    # One folder for all: the SSD tier is where a new worker finds what the old one has stored.
    common = {"model": model, "fleet_secret": SECRET, "data_dir": folder / "workers"}
    workers = [SharedWorker(address, folder, **common) for address in addresses]
    database = postgresql_server.database()
    gateways = [
        Service(
            model, folder / f"gateway-{number}", database=database, fleet_secret=SECRET,
            worker_addresses=",".join(addresses), worker_lease_s=60,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        for worker in workers[:2]:
            worker.start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda gateway: gateway.start(), gateways))
        made = Fleet(gateways, workers, [d["doc_id"] for d in twelve[:6]])
        made.wait(*workers[:2])
        gateways[0].ingest(twelve[:6])
        listing = gateways[1].http
        gateways[1].until(
            lambda: len(listing.get("/admin/documents").json()["documents"]) == 6,
            "the other gateway sees the documents",
        )
        yield made
    finally:
        for gateway in gateways:
            gateway.__exit__()
        for worker in workers:
            worker.stop()


@dataclass
class Load:
    """How every request ended: "done", "error", a status, or what broke."""

    ends: list[str] = field(default_factory=list)
    texts: dict[str, set[str]] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def client(self, number: int, fleet: Fleet) -> None:
        gateway = fleet.gateways[number % len(fleet.gateways)]
        turn = number
        with httpx.Client(base_url=gateway.http.base_url, timeout=120) as http:
            while not self.stop.is_set():
                turn += 1
                document = fleet.documents[turn % len(fleet.documents)]
                self.ends.append(self._ask(http, document))

    def _ask(self, http: httpx.Client, document: str) -> str:
        body = {
            "question": QUESTION, "documents": [document], "top_k": 1, "max_tokens": 12,
            "stream": True,
        }  # fmt: skip
        try:
            with http.stream("POST", "/v1/rag/generate", json=body) as reply:
                if reply.status_code != 200:
                    return f"{reply.status_code}: {reply.read().decode()}"
                name, last = "", ""
                for line in reply.iter_lines():
                    if line.startswith("event: "):
                        name = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        last = line
                return name if name == "done" else f"{name}: {last}"
        except httpx.HTTPError as error:
            return repr(error)


@contextmanager
def load(fleet: Fleet) -> Iterator[Load]:
    made = Load()
    threads = [
        threading.Thread(target=made.client, args=(number, fleet), daemon=True)
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.stop.set()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a request does not end"


def _uses_both(gateway: Service) -> bool:
    labels = [address.removeprefix("tcp://") for address in _ready(gateway)]
    assert len(labels) == 2
    steps = gateway.metrics()
    return all(steps.value("kvstitch_decode_steps_total", worker=label) > 0 for label in labels)


def _more(made: Load, count: int) -> Callable[[], bool]:
    wanted = len(made.ends) + count
    return lambda: len(made.ends) >= wanted


def test_a_worker_that_is_killed_under_load_ends_what_runs_there_and_nothing_else(
    fleet: Fleet,
) -> None:
    first, second, _ = fleet.workers
    until = fleet.gateways[0].until
    with load(fleet) as made:
        until(_more(made, 8), "requests before", LOADING_S)
        second.kill_nine()
        fleet.wait(first)
        until(_more(made, 8), "requests after", LOADING_S)
        second.start()
        fleet.wait(first, second)
    errors = [end for end in made.ends if end != "done"]
    # Only what had begun at that worker: at most one request of each client.
    assert len(errors) <= CLIENTS and all(end.startswith("error: ") for end in errors), errors


def test_a_deletion_waits_for_a_worker_that_is_listed_and_away(fleet: Fleet) -> None:
    first, second, third = fleet.workers
    assert second.drain() == 0, second.log()
    fleet.wait(first)
    http = fleet.gateways[0].http
    reply: dict[str, Any] = http.delete(f"/admin/documents/{fleet.documents[0]}").json()
    receipt = f"/admin/receipts/{reply['receipt_id']}"
    assert http.get(receipt).json()["state"] == "owed", reply
    assert fleet.ready(first.address)
    second.start()
    third.start()
    fleet.wait(first, second, third)
    fleet.gateways[0].until(
        lambda: http.get(receipt).json()["state"] == "completed", "the deletion completes", 120
    )


@pytest.mark.slow
def test_workers_are_replaced_under_load_and_no_request_fails(fleet: Fleet) -> None:
    first, second, third = fleet.workers
    until = fleet.gateways[0].until
    with load(fleet) as made:
        until(_more(made, 8), "requests before", LOADING_S)
        third.start()
        fleet.wait(first, second, third)
        assert first.drain() == 0, first.log()
        fleet.wait(second, third)
        first.start()  # the new version, where the old one was
        fleet.wait(first, second, third)
        assert second.drain() == 0, second.log()
        fleet.wait(first, third)
        until(_more(made, 8), "requests after", LOADING_S)
        for gateway in fleet.gateways:
            until(partial(_uses_both, gateway), "both gateways use both", LOADING_S)
    assert set(made.ends) == {"done"}, [end for end in made.ends if end != "done"]
