"""Serves the demo model and sends it calls that nobody would send on purpose.

    python -m tests.trials.fuzz --calls 100000 --seed 1

Every call must be answered, by nothing in the 5xx but a 503, 504 or 507 that says why, and the
worker must live on. The same seed draws the same calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.models import DEMO
from tests.e2e.service import Service
from tests.trials.fuzz.calls import Call, Caller
from tests.trials.fuzz.sending import fault, send

TOGETHER = 6
SHOWN = 20  # faults that are printed
DOCUMENTS = [
    {"doc_id": "person-01", "text": "Quentin keeps a goat.", "metadata": {"kind": "person"}},
    {"doc_id": "town-03", "text": "Old Zanska lies on the Nile.", "metadata": {"kind": "town"}},
]


class Fuzz:
    """One run against one service; `counts` by status, `faults` with what was sent."""

    def __init__(self, service: Service, seed: int) -> None:
        description = service.http.get("/openapi.json").json()
        host = f"127.0.0.1:{service.port}"
        self._caller = Caller(description, host, random.Random(seed))
        self._service = service
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self, calls: int) -> None:
        """Send the calls, a few at a time; stops early when faults pile up."""
        worker = self._service.worker_pid()
        left = calls
        while left > 0 and len(self.faults) < SHOWN:
            asyncio.run(self._some(min(left, 1000)))
            left -= 1000
            if self._service.worker_pid() != worker:
                self.faults.append("the worker died")
                worker = self._service.worker_pid()

    async def _some(self, calls: int) -> None:
        drawn = iter([self._caller.draw() for _ in range(calls)])

        async def one_after_another() -> None:
            for call in drawn:
                await self._one(call)

        await asyncio.gather(*(one_after_another() for _ in range(TOGETHER)))

    async def _one(self, call: Call) -> None:
        try:
            reply = await send(self._service.port, call)
            wrong = fault(call, reply)
            self.counts[str(reply.status)] += 1
        except TimeoutError:
            wrong, reply = "it hangs", None
        if wrong:
            answer = reply.body[:300] if reply else b""
            self.faults.append(f"{wrong}: {call.raw()[:1500]!r} -> {answer!r}")


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.trials.fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-") as folder,
        Service(DEMO, Path(folder) / "data", **IN_PROCESS) as service,
    ):
        service.ingest(DOCUMENTS)
        fuzz = Fuzz(service, given.seed)
        fuzz.run(given.calls)
        if fuzz.faults:
            print(service.log(), file=sys.stderr)
    counts = dict(sorted(fuzz.counts.items()))
    report = {"seed": given.seed, "seconds": round(time.monotonic() - started), "by status": counts}
    print(json.dumps({**report, "calls": sum(counts.values()), "faults": fuzz.faults[:SHOWN]}))
    sys.exit(bool(fuzz.faults))


if __name__ == "__main__":
    main()
