"""What all tiers of a fleet hold and were told to write, by the servers and by the workers."""

from __future__ import annotations

import re
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.fleet.proofs.fleet import Fleet
from tests.e2e.metrics import Metrics
from tests.s3_server import BUCKET

_CHUNK_KEY = re.compile("[0-9a-f]{32,}")
REPORTED_S = 2.5  # workers report every second
LONGEST_S = 60.0


@dataclass(frozen=True)
class TierCounts:
    """One look.

    Attributes:
        new_keys: puts of keys that no tier held, by the workers' count since their start.
        redis_keys: on all masters.
        redis_writes: commands that wrote a value, on all masters.
        s3_objects: in the bucket.
        ssd_chunks: different chunks on the SSD tiers.
    """

    new_keys: int
    redis_keys: int
    redis_writes: int
    s3_objects: int
    ssd_chunks: int

    def since(self, earlier: TierCounts) -> dict[str, int]:
        """How much each has grown."""
        before = asdict(earlier)
        return {name: value - before[name] for name, value in asdict(self).items()}


def count(fleet: Fleet) -> TierCounts:
    """Waits until the workers have written and told everything, and counts."""
    give_up_at = time.monotonic() + LONGEST_S
    last = _count(fleet)
    while True:
        time.sleep(REPORTED_S)
        now = _count(fleet)
        if now == last or time.monotonic() > give_up_at:
            return now
        last = now


def sums_by_worker(fleet: Fleet, name: str) -> dict[str, float]:
    """A counter of all workers, each counted once."""
    out: dict[str, float] = {}
    for number, metrics in enumerate(_scrapes(fleet)):
        for (sample, labels), value in metrics.samples.items():
            if sample == name:
                worker = f"{number}/{dict(labels).get('worker', '0')}"
                out[worker] = out.get(worker, 0.0) + value
    return out


def _scrapes(fleet: Fleet) -> list[Metrics]:
    """Of every gateway, or of one where all report the same workers."""
    own = fleet.layout == "own_workers"
    gateways = fleet.gateways if own else fleet.gateways[:1]
    return [Metrics.parse(g.http.get("/metrics").text) for g in gateways]


def _count(fleet: Fleet) -> TierCounts:
    keys = writes = 0
    for client in fleet.redis_masters():
        with closing(client):
            keys += client.dbsize()
            done: dict[str, Any] = client.info("commandstats")
            writes += sum(
                done.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("set", "hset", "mset")
            )
    return TierCounts(
        new_keys=int(sum(sums_by_worker(fleet, "kvstitch_store_new_keys_total").values())),
        redis_keys=keys,
        redis_writes=writes,
        s3_objects=len(s3_objects(fleet)),
        ssd_chunks=len(fleet.ssd_files()),
    )


def redis_chunks(fleet: Fleet) -> set[str]:
    """Different chunks on all masters; each has a key for every of its parts."""
    found: set[str] = set()
    for client in fleet.redis_masters():
        with closing(client):
            names = (name.decode(errors="replace") for name in client.scan_iter(count=1000))
            found |= {key for name in names for key in _CHUNK_KEY.findall(name)}
    return found


def s3_objects(fleet: Fleet) -> list[str]:
    """Names in the bucket."""
    pages = fleet.s3.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [one["Key"] for page in pages for one in page.get("Contents", [])]
