"""How long choosing a worker takes, by the number of workers.

    python -m benchmarks.fleet.choice_time [--workers 2 64 1024]

The router and the directory are those that serve. Of eight documents some are held by many
workers, some by one, some by none; workers differ in speed and backlog. Between two choices ten
workers report, as 1,024 do that report ten times a second while 1,000 requests come. Time is the
processor's, of this thread: neighbours who use the same caches still lengthen it, so the least of
all choices is told too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.gateway.fleet.routing.cost import Work
from service.gateway.fleet.routing.directory import Directory, PrefixMap
from service.gateway.fleet.routing.router import Router
from service.gateway.fleet.routing.worker_table import Backlog, WorkerTable
from service.messages.replies import Holdings, WorkerLoad
from tuning.environment import describe

OUT = Path("benchmarks/results/fleet/choice_time.json")
DOCUMENTS, TOKENS = 8, 256
CHUNKS_PER_WORKER = 200
REPORTS_BETWEEN = 10
SEED = 0


class Pool:
    """What the gateway's pool knows of its workers, and the router that it asks."""

    def __init__(self, workers: int) -> None:
        self.source = random.Random(SEED)
        self.table = WorkerTable()
        self.backlogs = [Backlog() for _ in range(workers)]
        self.directory = Directory()
        self.router = Router(
            "cost", self.table, self.directory, PrefixMap(), slower_tiers=True, prefix_cache=True
        )
        self.chunks = CHUNKS_PER_WORKER * workers
        for number in range(workers):
            held = [self._rank() for _ in range(CHUNKS_PER_WORKER)]
            names = [rank.to_bytes(16, "big") for rank in dict.fromkeys(held)]
            self.directory.apply(number, Holdings(1, names, [], True, 0, self._load()))
            self.table.add(number)
            self.table.in_flight[number] = number % 4
            self.report(number)

    def report(self, number: int) -> None:
        """A worker says how busy it is."""
        self.backlogs[number].reported(self.source.expovariate(20), 0)
        self.table.set_load(number, self._load())
        self.table.set_backlog(number, self.backlogs[number])

    def prompt(self) -> Work:
        names = {self._rank(): None for _ in range(DOCUMENTS)}
        chunks = [rank.to_bytes(16, "big") for rank in names]
        return Work(chunks, [TOKENS] * len(names), 64, 128.0, 0.15)

    def _rank(self) -> int:
        return int(float(self.chunks) ** self.source.random()) - 1  # Zipf's law with exponent 1

    def _load(self) -> WorkerLoad:
        speed = self.source.uniform(0.8, 1.2)
        load = WorkerLoad(
            token_s=36e-6, overhead_s=8e-3, step_s=7e-3, step_sequence_s=5e-5,
            token_bytes=131072.0, tiers={"redis": (1e-3, 1e-9), "ssd": (2e-4, 5e-10)},
        )  # fmt: skip
        return replace(load, token_s=load.token_s * speed, step_s=load.step_s * speed)


def measure(workers: int, choices: int) -> dict[str, Any]:
    """Microseconds of a choice."""
    pool = Pool(workers)
    numbers = list(range(workers))
    times: list[float] = []
    for _ in range(choices):
        for number in pool.source.choices(range(workers), k=REPORTS_BETWEEN):
            pool.report(number)
        prompt = pool.prompt()
        began = time.thread_time()
        chosen = pool.router.choose(prompt, numbers)
        times.append(1e6 * (time.thread_time() - began))
        pool.router.sent(prompt, chosen.number)
    times.sort()
    return {
        "workers": workers,
        "choices": choices,
        "least_us": round(times[0], 1),
        "p50_us": round(statistics.median(times), 1),
        "p95_us": round(times[int(0.95 * len(times))], 1),
    }


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.choice_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8, 64, 1024])
    parser.add_argument("--choices", type=int, default=300)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows = [measure(workers, args.choices) for workers in args.workers]
    for row in rows:
        print(json.dumps(row))
    result = {"environment": {**describe(), "seed": SEED}, "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
