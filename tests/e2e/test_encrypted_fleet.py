"""Encryption where two gateways share a database and workers: keys are made, used and deleted at
either, and no stored KV is readable in Redis."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.kvstore import RedisTier, TieredStore
from tests import preloaded
from tests.e2e.conftest import Documents
from tests.e2e.service import HANG_S, START_S, Service, tiers
from tests.e2e.shared_worker import SharedWorker
from tests.e2e.test_at_rest import QUESTION, key_file, renamed
from tests.ports import free_ports
from tests.postgresql_server import PostgresqlServer
from tests.redis_server import redis_server

pytestmark = pytest.mark.slow

SECRET = "0123456789abcdef" * 2
TENANTS = ("acme", "beta", "gamma", "delta")


@dataclass
class Fleet:
    """What the tests use, and where it keeps what it is given."""

    folder: Path
    gateways: list[Service]
    database: str
    redis: str
    key: Path
    bearers: dict[str, str]

    def run(self, *command: str) -> Any:
        """What the command line says, which works on the database."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
        environment |= {
            "KVSTITCH_DATABASE": self.database,
            "KVSTITCH_ENCRYPTION_KEY_FILE": str(self.key),
        }
        data = str(self.gateways[0].data_dir)
        ended = subprocess.run(
            [*preloaded.python(), "-m", "kvstitch.service.cli", *command,
             "--data-dir", data, "--json"],
            capture_output=True, text=True, env=environment, timeout=START_S, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def client(self, gateway: int, tenant: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.bearers[tenant]}"}
        base = str(self.gateways[gateway].http.base_url)
        return httpx.Client(base_url=base, headers=headers, timeout=HANG_S)

    def ingest(self, gateway: int, tenant: str, documents: Documents) -> None:
        with self.client(gateway, tenant) as http:
            reply = http.post("/admin/precompute", json={"documents": documents})
            assert reply.status_code == 202, reply.text
            path = f"/admin/jobs/{reply.json()['job_id']}"
            job: dict[str, Any] = {}

            def ended() -> bool:
                job.update(http.get(path).json())
                return job["state"] not in ("queued", "running")

            self.gateways[gateway].until(ended, f"the job of {tenant} does not end", START_S)
            assert job["state"] == "succeeded", job

    def ask(self, gateway: int, tenant: str, **fields: Any) -> httpx.Response:
        body = {"question": QUESTION, "max_tokens": 6, "fusion": {"method": "pie"}, **fields}
        with self.client(gateway, tenant) as http:
            return http.post("/v1/rag/generate", json=body)


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, model: Path, postgresql_server: PostgresqlServer
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("encrypted-fleet")
    key = key_file(tmp_path_factory.mktemp("key"))
    database = postgresql_server.database()
    addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports(2)]
    with redis_server() as far:
        common: dict[str, Any] = {
            "model": model, "fleet_secret": SECRET, "data_dir": folder / "workers",
            "redis_url": far.patient_url, "memory_tier_mib": 0,
        }  # fmt: skip
        workers = [SharedWorker(address, folder, **common) for address in addresses]
        gateways = [
            Service(
                model, folder / f"gateway-{number}", database=database, fleet_secret=SECRET,
                worker_addresses=",".join(addresses), worker_lease_s=60, redis_url=far.patient_url,
                encryption_key_file=key,
            )
            for number in range(2)
        ]  # fmt: skip
        made = Fleet(folder, gateways, database, far.url, key, {})
        try:
            for worker in workers:
                worker.start()
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda gateway: gateway.start(), gateways))
            for tenant in TENANTS:
                made.bearers[tenant] = made.run("keys", "create", "--tenant", tenant)["key"]
            operator = made.run("keys", "create")["key"]
            for gateway in gateways:  # each reads all keys anew every few seconds
                gateway.http.headers["Authorization"] = f"Bearer {operator}"
                gateway.until(lambda gateway=gateway: _ready(gateway) == 2, "both workers", START_S)  # type: ignore[misc]
            yield made
        finally:
            for gateway in gateways:
                gateway.__exit__()
            for worker in workers:
                worker.stop()


def _ready(gateway: Service) -> int:
    reply = gateway.http.get("/status")
    if reply.status_code == 401:  # it does not know the key yet
        return 0
    return sum(worker["reason"] is None for worker in reply.json()["workers"])


@pytest.fixture(scope="module")
def documents(fleet: Fleet, twelve: Documents) -> Documents:
    """Two of each tenant, handed in at both gateways at once: both make keys."""
    documents = renamed(twelve[:2])
    with ThreadPoolExecutor(len(TENANTS)) as pool:
        sent = [
            pool.submit(fleet.ingest, number % 2, tenant, documents)
            for number, tenant in enumerate(TENANTS)
        ]
        for each in sent:
            each.result()
    return documents


def test_what_one_gateway_took_in_is_answered_from_kv_by_the_other(
    fleet: Fleet, documents: Documents
) -> None:
    names = [d["doc_id"] for d in documents]
    for number, tenant in enumerate(TENANTS):
        for gateway in ((number + 1) % 2, number % 2):
            answer = fleet.ask(gateway, tenant, documents=names, top_k=2)
            assert answer.status_code == 200, answer.text
            assert "cold" not in tiers(answer.json()), (tenant, gateway)
            with fleet.client(gateway, tenant) as http:
                assert http.get("/admin/documents/d0").json()["text"] == documents[0]["text"]


def test_stored_kv_opens_to_nobody_without_a_key(fleet: Fleet, documents: Documents) -> None:
    with TieredStore([RedisTier(fleet.redis)]) as store:
        found = list(map(store.read, store.keys()))
    assert len(found) >= len(TENANTS) * len(documents)
    assert {each.problems for each in found} == {(("redis", "locked"),)}


def test_a_deleted_key_is_gone_at_both_and_in_all_workers(
    fleet: Fleet, documents: Documents
) -> None:
    """The last test: a tenant's keys are deleted by the command line, while both serve."""
    names = [d["doc_id"] for d in documents]
    receipt = fleet.run("encryption", "delete", "--tenant", "acme", "--yes")
    assert receipt["documents"] == 2 and len(receipt["key_ids"]) == 1
    for gateway in (0, 1):
        with fleet.client(gateway, "acme") as http:
            assert http.get("/admin/documents/d0").status_code == 404
            assert http.get("/admin/documents").json()["documents"] == []
            found = http.post("/v1/search", json={"query": documents[0]["text"][:80]})
            assert found.status_code == 200 and found.json()["results"] == [], found.text
        assert fleet.ask(gateway, "acme", documents=names).status_code in (404, 422)
    # The KV of the same texts is still there, and opens to nobody: it is computed anew.
    inline = [{"title": d["title"], "text": d["text"]} for d in documents]

    def cold() -> bool:
        answer = fleet.ask(0, "acme", inline_documents=inline)
        assert answer.status_code == 200, answer.text
        return tiers(answer.json()) == ["cold"] * 2

    fleet.gateways[0].until(cold, "KV of a deleted key is read")
    second = fleet.gateways[1]
    second.kill_nine()
    second.start()
    for gateway in (0, 1):
        answer = fleet.ask(gateway, "beta", documents=names, top_k=2)
        assert answer.status_code == 200 and "cold" not in tiers(answer.json()), gateway
        with fleet.client(gateway, "acme") as http:
            assert http.get("/admin/documents/d0").status_code == 404
    fleet.ingest(1, "acme", documents[:1])  # under a key that is made anew

    def from_kv() -> bool:
        """The first who asks finds KV of the deleted key in its place, and has it replaced."""
        answer = fleet.ask(0, "acme", documents=["d0"], top_k=1)
        assert answer.status_code == 200, answer.text
        return "cold" not in tiers(answer.json())

    fleet.gateways[0].until(from_kv, "the KV of the new key is not stored")
    kept = {each["key_id"] for each in fleet.run("encryption", "keys")}
    assert not kept & set(receipt["key_ids"])
