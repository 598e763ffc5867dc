"""SIGKILL of gateway and worker at random points of an ingest: what was acknowledged ends indexed
exactly once, with its KV; what was not, not at all or whole.

    KVSTITCH_CRASH_ROUNDS=10 KVSTITCH_CRASH_DOCUMENTS=500 python -m pytest \
        tests/e2e/faults/test_ingest_crash.py

is the long form; KVSTITCH_CRASH_SEED repeats one.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.service import START_S, Service

ROUNDS = int(os.environ.get("KVSTITCH_CRASH_ROUNDS", "2"))
DOCUMENTS = int(os.environ.get("KVSTITCH_CRASH_DOCUMENTS", "60"))
SEED = int(os.environ.get("KVSTITCH_CRASH_SEED", "7"))
CALL = 20  # documents


def document(name: str) -> dict[str, Any]:
    return {"doc_id": name, "title": name, "text": f"Number {name} is kept in drawer {name}."}


class Ingest:
    """Calls one after another in a thread of their own, until the service is gone."""

    def __init__(self, service: Service, calls: list[list[dict[str, Any]]]) -> None:
        self.acknowledged: list[str] = []
        self._url = str(service.http.base_url)
        self._calls = calls
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as http:
            for number, call in enumerate(self._calls):
                body = {"documents": call}
                try:
                    headers = {"Idempotency-Key": f"{call[0]['doc_id']}-{number}"}
                    reply = http.post("/admin/precompute", json=body, headers=headers)
                except httpx.TransportError:
                    return
                assert reply.status_code == 202, reply.text
                self.acknowledged += [d["doc_id"] for d in call]


def all_jobs(service: Service) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params: dict[str, str | int] = {"limit": 100, **({"cursor": cursor} if cursor else {})}
        page = service.http.get("/admin/jobs", params=params).json()
        jobs += page["jobs"]
        if (cursor := page["next_cursor"]) is None:
            return jobs


def stored_ids(data_dir: Path) -> list[tuple[str, int, int]]:
    """(doc_id, chunks, vectors) of every document in the catalog, from its file."""
    with sqlite3.connect(f"file:{data_dir / 'catalog.db'}?mode=ro", uri=True) as catalog:
        return catalog.execute(
            "SELECT doc_id, count(chunk_id), count(vector) FROM documents "
            "JOIN chunks USING (document) LEFT JOIN vectors USING (chunk_id) GROUP BY document"
        ).fetchall()


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_nothing_is_done_twice(serve: Serve) -> None:
    chance = random.Random(SEED)
    acknowledged: list[str] = []
    sent: set[str] = set()
    with serve() as service:
        for turn in range(ROUNDS):
            names = [f"r{turn}-{i}" for i in range(DOCUMENTS)]
            sent |= set(names)
            documents = [document(name) for name in names]
            calls = [documents[i : i + CALL] for i in range(0, len(documents), CALL)]
            ingest = Ingest(service, calls)
            # From the first acknowledgement on: calls coming in, documents indexed, KV computed.
            service.until(lambda: bool(ingest.acknowledged), "nothing is acknowledged")  # noqa: B023
            time.sleep(chance.uniform(0.05, 2.0 + DOCUMENTS / 50))
            service.kill_nine()
            ingest.join()
            acknowledged += ingest.acknowledged
            service.start()

        def all_ended() -> bool:
            return all(job["state"] not in ("queued", "running") for job in all_jobs(service))

        service.until(all_ended, "the jobs do not end", START_S + DOCUMENTS * ROUNDS)
        jobs = all_jobs(service)
        assert {job["state"] for job in jobs} == {"succeeded"}, (SEED, jobs)
        stored = stored_ids(service.data_dir)
        names = [name for name, _, _ in stored]
        assert len(names) == len(set(names)), SEED
        assert set(acknowledged) <= set(names) <= sent, SEED
        assert sum(job["progress"]["done"] for job in jobs) == len(names), "each in one job"
        assert all(chunks == vectors == 1 for _, chunks, vectors in stored), SEED
        # Every document and S has its KV once: the files are named by content.
        assert len(service.chunk_files()) == len(names) + 1, SEED
        for name in chance.sample(sorted(acknowledged), min(5, len(acknowledged))):
            answer = service.ask(
                "Where?", documents=[name], top_k=1, fusion={"method": "pie"}, max_tokens=1
            )
            assert [c["doc_id"] for c in answer["citations"]] == [name]
            assert answer["cache"]["documents"][0]["tier"] != "cold"
        assert service.settled_metrics().value("kvstitch_documents") == len(names)
