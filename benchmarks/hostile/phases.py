"""A service that two tenants use; quiet blocks and hostile ones take turns."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from benchmarks.costs.worker_memory import (
    memory_mib,
    processor_s,
    service_process,
    worker_of,
)
from benchmarks.hostile.ordinary import ordinary_documents
from benchmarks.hostile.reader import Seen, read_until
from loadtest.local_service import service

T = TypeVar("T")
BLOCKS, TOKENS = 4, 60
ENDED = ("succeeded", "failed", "cancelled")  # a job
# Memory is read when gateway and worker have taken less than a tenth of a core for ten seconds:
# what was cancelled may still be under way.
SETTLE_S, SETTLED_S, LONGEST_SETTLING_S = 10.0, 1.0, 180.0
# What is used once is kept, so it is small, and all of it is used before memory is read: the pool
# by ten prompts of eight passages that are longer than it together, the tier by their KV, and by
# ordinary documents what the gateway reads or makes when a language or a length first comes.
POOL_TOKENS, TIER_MIB = 8192, 64
PROMPTS, PASSAGES, WORDS = 10, 8, 100
TARGET, MEMORY_TARGET = 1.5, 1.05


@dataclass
class Place:
    """A running service.

    Attributes:
        url: Where it is.
        readers: Keys of those who read answers.
        hostile: Key of the one who disturbs them.
        pids: Of gateway and worker.
    """

    url: str
    readers: list[str]
    hostile: str
    pids: dict[str, int] = field(default_factory=dict)

    def client(self, key: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=600.0, limits=limits)

    def memory(self) -> dict[str, float]:
        """MiB that are no file's, of gateway and worker."""
        return {name: round(memory_mib(pid)["anonymous"], 1) for name, pid in self.pids.items()}

    def cpu_s(self) -> float:
        """Processor time that gateway and worker have taken."""
        return sum(map(processor_s, self.pids.values()))

    async def settled(self) -> None:
        """Wait until they have little to do, or too long."""
        until, taken = time.monotonic() + LONGEST_SETTLING_S, -math.inf
        while time.monotonic() < until and self.cpu_s() - taken > SETTLED_S:
            taken = self.cpu_s()
            await asyncio.sleep(SETTLE_S)

    def alive(self) -> bool:
        """Whether gateway and worker are those that were there at the beginning."""
        try:
            return worker_of(self.pids["gateway"]) == self.pids["worker"]
        except RuntimeError:
            return False


@contextmanager
def place(folder: Path, model: Path, readers: int = 1) -> Iterator[Place]:
    """Start a service with keys of so many readers, each a tenant, and of a hostile one."""
    names = ["hostile", *(f"reader-{number}" for number in range(readers))]
    folder.mkdir(parents=True, exist_ok=True)
    hostile, *others = [_key(folder, name) for name in names]
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ |= {
        "KVSTITCH_POOL_TOKENS": str(POOL_TOKENS),
        "KVSTITCH_MEMORY_TIER_MIB": str(TIER_MIB),
    }
    with service(folder, model) as url:
        gateway = service_process(folder)
        yield Place(url, others, hostile, {"gateway": gateway, "worker": worker_of(gateway)})


async def _use_all(http: httpx.AsyncClient) -> None:
    """Have the worker use all of its KV pool and of its memory tier, the gateway its tables."""
    source = random.Random(0)
    for _ in range(PROMPTS):
        numbers = [source.choices(range(1000), k=WORDS) for _ in range(PASSAGES)]
        passages = [{"text": " ".join(map(str, each)), "title": "numbers"} for each in numbers]
        body = {"question": "Which?", "inline_documents": passages, "max_tokens": 8}
        (await http.post("/v1/rag/generate", json=body)).raise_for_status()
    documents = ordinary_documents(seed=0)
    reply = await http.post("/admin/precompute", json={"documents": documents})
    path = f"/admin/jobs/{reply.raise_for_status().json()['job_id']}"
    while (job := (await http.get(path)).json())["state"] not in ENDED:
        await asyncio.sleep(0.5)
    if job["state"] != "succeeded":
        raise RuntimeError(f"ordinary documents were not ingested: {job}")


def _key(folder: Path, tenant: str) -> str:
    command = [*(sys.executable, "-m", "kvstitch.service.cli", "keys", "create", "--json"),
               *("--data-dir", str(folder), "--tenant", tenant)]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return str(json.loads(made.stdout)["key"])


async def compare(
    where: Place,
    hostile: Callable[[T], Awaitable[str]],
    work: Sequence[T],
    at_a_time: int,
    answers: int,
    ordinary: Callable[[], Awaitable[object]] | None = None,
) -> dict[str, Any]:
    """Read answers with and without hostile work, in turns.

    Args:
        hostile: Does one, and says what became of it.
        work: All of it.
        at_a_time: Of it.
        answers: Of each reader in a quiet block; beside hostile work so many at least.
        ordinary: Does one of what the hostile work looks like from outside. With it a quiet block
            has as many of these at a time, so that what is compared is the hostility, not the load.
    """
    quiet, beside = Seen(), Seen()
    became: dict[str, int] = {}
    slots = asyncio.Semaphore(at_a_time)

    async def one(each: T) -> None:
        async with slots:
            said = await hostile(each)
            became[said] = became.get(said, 0) + 1
            print(f"\r{sum(became.values())} of {len(work)}", end="", file=sys.stderr, flush=True)

    async def readers(seen: Seen, ended: asyncio.Event, seed: int) -> None:
        await asyncio.gather(*(
            read_until(client, ended, seen, seed=seed + 1000 * n, tokens=TOKENS,
                       least=answers)
            for n, client in enumerate(clients)
        ))  # fmt: skip

    async def quietly(seen: Seen, seed: int) -> None:
        ended = asyncio.Event()

        async def keep_on(work: Callable[[], Awaitable[object]]) -> None:
            while not ended.is_set():
                await work()

        beside = [keep_on(ordinary) for _ in range(at_a_time)] if ordinary else []
        load = asyncio.gather(*beside)
        try:
            await readers(seen, over, seed)
        finally:
            ended.set()
            await load

    clients = [where.client(key) for key in where.readers]
    try:
        over = asyncio.Event()
        over.set()
        started = where.memory()
        await quietly(Seen(), 0)
        await _use_all(clients[0])
        for each in work[:3]:  # what is loaded once
            await one(each)
        became.clear()
        await where.settled()
        before = where.memory()
        size = -(-len(work) // BLOCKS)
        for block in range(BLOCKS):
            await quietly(quiet, 10_000 * (2 * block + 1))
            ended = asyncio.Event()
            reading = asyncio.create_task(readers(beside, ended, 10_000 * (2 * block + 2)))
            try:
                await asyncio.gather(*(one(each) for each in work[block * size :][:size]))
            finally:
                ended.set()
                await reading
            print("", beside.figures(), quiet.figures(), became, file=sys.stderr, flush=True)
        await where.settled()
        after = where.memory()
    finally:
        for client in clients:
            await client.aclose()
    without, with_ = quiet.figures(), beside.figures()
    return {
        "became": dict(sorted(became.items())),
        "without": without,
        "with": with_,
        "with over without": {
            name: round(with_[name] / without[name], 2) for name in without if "_ms" in name
        },
        "anonymous MiB when it had started": started,
        "anonymous MiB before": before,
        "anonymous MiB after": after,
        "memory, after over before": {n: round(after[n] / before[n], 3) for n in before},
        "the same processes": where.alive(),
        "failed": (quiet.failed + beside.failed)[:5],
        "targets": {"TTFT p95, TPOT": TARGET, "memory": MEMORY_TARGET},
    }
