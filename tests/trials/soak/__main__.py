"""Serves the demo model, and looks at what two thousand requests and slow clients cost.

    python -m tests.trials.soak --requests 2000 --slow 300 --rounds 4

Prints resident memory and descriptors of both processes after a tenth of the requests and after
all of them, then the 95th percentile of normal requests without and with slow clients, in turns,
because a machine that does other work is not equally fast all the time. 0 leaves a part out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from demo.corpus_files import read_documents
from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.models import DEMO
from tests.e2e.service import Service
from tests.trials.soak.resources import Held
from tests.trials.soak.slow_clients import SlowClients
from tests.trials.soak.usual import UsualClient

SETTLE_S = 3.0
ANSWERED_S = 300.0
OF_A_ROUND = 60  # requests whose percentile is taken


def held(service: Service) -> dict[str, Held]:
    """What both processes hold once what is under way has ended."""
    service.settled_metrics()
    time.sleep(SETTLE_S)
    worker = service.worker_pid()
    assert worker is not None
    return {"gateway": Held.by(service.gateway_pid()), "worker": Held.by(worker)}


def endurance(service: Service, questions: list[str], requests: int) -> dict[str, Any]:
    client = UsualClient(service, questions, seed=1)
    early = requests // 10
    client.send(early)
    before = held(service)
    client.send(requests - early)
    after = held(service)
    return {
        process: {
            f"rss_mib after {early}": round(before[process].rss / 2**20, 1),
            f"rss_mib after {requests}": round(after[process].rss / 2**20, 1),
            "rss_change": round(after[process].rss / before[process].rss - 1, 4),
            f"descriptors after {early}": before[process].descriptors,
            f"descriptors after {requests}": after[process].descriptors,
        }
        for process in before
    }


def percentile_95(service: Service, questions: list[str]) -> float:
    """Seconds, over a round of requests one after the other."""
    seconds = []
    for number in range(OF_A_ROUND):
        started = time.perf_counter()
        service.ask(questions[number % len(questions)], max_tokens=4)
        seconds.append(time.perf_counter() - started)
    return statistics.quantiles(seconds, n=20)[-1]


def idle(service: Service) -> bool:
    return bool(service.http.get("/status").json()["in_flight"] == 0)


def beside_slow_clients(
    service: Service, questions: list[str], slow: int, rounds: int
) -> dict[str, Any]:
    without, beside, ended = [], [], {}
    for _ in range(rounds):
        without.append(percentile_95(service, questions))
        with SlowClients(service.port, slow) as clients:
            time.sleep(SETTLE_S)
            # A third of them has asked: what they cost is holding on, not being answered.
            service.until(lambda: idle(service), "the slow clients are answered", ANSWERED_S)
            beside.append(percentile_95(service, questions))
            ended = dict(clients.ended)
        time.sleep(SETTLE_S)
    ratio = statistics.median(beside) / statistics.median(without)
    return {
        "slow_clients": slow,
        "p95_s without": [round(value, 4) for value in without],
        "p95_s beside them": [round(value, 4) for value in beside],
        "ratio of the medians": round(ratio, 2),
        "cut off in the last round": ended,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.trials.soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--slow", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    documents = read_documents()[:24]
    questions = [f"What is said of {document.title}?" for document in documents]
    corpus = [{"doc_id": d.doc_id, "title": d.title, "text": d.text} for d in documents]
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        Service(DEMO, Path(folder) / "data", **IN_PROCESS) as service,
    ):
        service.ingest(corpus)
        started = time.monotonic()
        if given.requests:
            report = endurance(service, questions, given.requests)
            report["seconds"] = round(time.monotonic() - started)
            print(json.dumps(report), flush=True)
        if given.rounds:
            report = beside_slow_clients(service, questions, given.slow, given.rounds)
            print(json.dumps(report))


if __name__ == "__main__":
    main()
