"""Two real workers behind one gateway, which runs in this process so that tests can look inside."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.fleet.worker_pool import WorkerPool
from kvstitch.service.gateway.workers import ProcessOptions
from kvstitch.service.settings import load
from kvstitch.service.shared.resources import uptime
from tests.e2e.conftest import Documents
from tests.e2e.service import Service, tiers
from tests.service.gateway.rig import HANG_S, Rig, until

QUESTION = "What is it famous for?"
TOLD_S = 0.5  # in which a worker has told what it holds, several times over


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Documents
) -> Iterator[Rig]:
    data_dir = tmp_path_factory.mktemp("fleet") / "data"
    earlier_prompt = data_dir / "kv" / ".prompts" / "of_one_worker"
    earlier_prompt.parent.mkdir(parents=True)
    earlier_prompt.write_text("a deletion would not reach it")
    settings = load(
        model=str(model),
        data_dir=data_dir,
        port=0,
        workers=2,
        threads=1,
        planner=False,
        prefix_cache=False,
    )
    rig = Rig(
        Gateway(settings, model, processes=ProcessOptions(restart_backoff_s=(0.05, 0.2))), None
    )
    try:
        rig.start()
        until(lambda: ready(rig) == 2, "both workers")
        assert not earlier_prompt.exists()
        assert rig.ingest(twelve)["state"] == "succeeded"
        yield rig
    finally:
        rig.stop()


def ready(rig: Rig) -> int:
    workers = rig.http.get("/status").json()["workers"]
    return sum(worker["reason"] is None for worker in workers)


def pool(rig: Rig) -> WorkerPool:
    assert isinstance(rig.gateway.worker, WorkerPool)
    return rig.gateway.worker


def answer(rig: Rig, documents: list[str], **fields: Any) -> dict[str, Any]:
    body = {"question": QUESTION, "documents": documents, "top_k": 3, "max_tokens": 8, **fields}
    reply = rig.http.post("/v1/rag/generate", json=body)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


def routed(rig: Rig) -> dict[str, float]:
    name = "kvstitch_routed_documents_total"
    return {where: rig.metric(name, where=where) for where in ("here", "elsewhere", "nowhere")}


def held(rig: Rig, worker: int) -> float:
    return rig.metric("kvstitch_tier_entries", tier="memory", worker=str(worker))


def wait_for_reports(rig: Rig) -> None:
    """Until each worker has told its counters anew."""
    now = uptime()  # by the same clock as theirs

    def told() -> bool:
        stats = [member.client.stats for member in pool(rig).members]
        return all(each is not None and (each.clock or 0.0) > now for each in stats)

    until(told, "every worker reports")


def sets(documents: Documents) -> list[list[str]]:
    names = [document["doc_id"] for document in documents]
    return [names[start : start + 3] for start in range(0, 9, 3)]


def test_answers_are_those_of_one_worker(fleet: Rig, service: Service, twelve: Documents) -> None:
    used: set[int] = set()
    for documents in sets(twelve):
        for chosen in (documents, documents[::-1]):
            before = [held(fleet, 0), held(fleet, 1)]
            one = service.ask(QUESTION, documents=chosen, top_k=3, max_tokens=8)
            two = answer(fleet, chosen)
            assert two["text"] == one["text"] and "cold" not in tiers(two)
            used |= {n for n in (0, 1) if held(fleet, n) or before[n]}
    assert used == {0, 1}  # ingestion has made both hold something


def test_a_set_goes_to_the_worker_that_holds_it(fleet: Rig, twelve: Documents) -> None:
    """Of three sets one at least: a worker that was slow lately, as it may be on a busy machine, is
    passed over with good reason."""
    until(
        lambda: any(goes_where_it_is_held(fleet, documents) for documents in sets(twelve)),
        "a set goes where it is held",
    )


def goes_where_it_is_held(fleet: Rig, documents: list[str]) -> bool:
    answer(fleet, documents)
    time.sleep(TOLD_S)
    before = routed(fleet)
    for chosen in (documents, documents[::-1], documents):
        if tiers(answer(fleet, chosen)) != ["memory"] * 3:
            return False
    after = routed(fleet)
    return after == before | {"here": before["here"] + 9}


def test_a_wrong_directory_costs_time_and_no_answer(fleet: Rig, twelve: Documents) -> None:
    documents = sets(twelve)[1]
    right = answer(fleet, documents)
    time.sleep(TOLD_S)
    directory = pool(fleet).directory
    for name, holders in list(directory._holders.items()):
        directory._holders[name] = tuple({0, 1}.difference(holders)) or (1,)
    for number in (0, 1):
        there = {name for name, holders in directory._holders.items() if number in holders}
        directory._held[number] = there
    assert [answer(fleet, documents)["text"] for _ in range(3)] == [right["text"]] * 3


def test_a_gap_is_noticed_and_closed_by_a_snapshot(fleet: Rig, twelve: Documents) -> None:
    directory = pool(fleet).directory
    counts = [directory.held(0), directory.held(1)]
    assert all(counts)
    for worker in (0, 1):
        directory._next[worker] += 5
    for documents in sets(twelve):
        answer(fleet, documents)
    until(lambda: [directory.held(0), directory.held(1)] >= counts, "a snapshot")


def test_a_deletion_reaches_both(fleet: Rig) -> None:
    name = "soon-gone"
    fleet.ingest([{"doc_id": name, "title": "Gone", "text": "Gone is a town of no importance."}])
    router = pool(fleet)._router
    router._policy = "round_robin"
    try:
        for _ in range(2):
            answer(fleet, [name], top_k=1)
    finally:
        router._policy = "cost"
    for _ in range(2):  # the metrics follow a report that is younger than the answers
        wait_for_reports(fleet)
    before = [held(fleet, 0), held(fleet, 1)]
    deleted = fleet.http.delete(f"/admin/documents/{name}")
    assert deleted.status_code in (200, 202), deleted.text

    def done() -> bool:
        return all(held(fleet, n) == before[n] - 1 for n in (0, 1))

    until(done, "both memory tiers give the chunk up")


def test_every_request_ends_when_a_worker_is_killed(fleet: Rig, twelve: Documents) -> None:
    ends: list[str] = []
    started = threading.Semaphore(0)

    def ask(documents: list[str]) -> None:
        body = {"question": QUESTION, "documents": documents, "top_k": 3, "max_tokens": 60}
        last = ""
        with fleet.http.stream("POST", "/v1/rag/generate", json={**body, "stream": True}) as reply:
            for line in reply.iter_lines():
                if line.startswith("event: "):
                    last = line.removeprefix("event: ")
                    if last == "token":
                        started.release()
        ends.append(last)

    threads = [
        threading.Thread(target=ask, args=(sets(twelve)[n % 3],), daemon=True) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    assert started.acquire(timeout=HANG_S)
    victim = fleet.http.get("/status").json()["workers"][0]["pid"]
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join(timeout=HANG_S)
    assert len(ends) == 8 and set(ends) <= {"done", "error"} and "done" in ends
    assert fleet.http.get("/health/ready").status_code == 200  # the other worker goes on
    until(lambda: ready(fleet) == 2, "a new worker")
    assert fleet.metric("kvstitch_worker_restarts_total") == 1
    assert answer(fleet, sets(twelve)[0])["text"]
