"""What the worker tells of its store."""

from __future__ import annotations

from pathlib import Path

from kvstore import MemoryTier, SsdTier, TieredStore
from kvstore.tiers.ssd.directory_scan import chunk_path
from service.metrics import WORKER_METRICS
from service.worker.server.statistics import store_values
from tests.kvstore.chunks import make_chunk, make_key

OPERATIONS = "kvstitch_tier_operations_total"


def counted(store: TieredStore, **labels: str) -> list[float]:
    values = store_values(store.stats())
    return [v for name, have, v in values if name == OPERATIONS and labels.items() <= have.items()]


def test_the_first_damaged_chunk_is_an_increase(tmp_path: Path) -> None:
    """It is counted from 0 on: `increase()` of a series that begins at 1 is 0."""
    with TieredStore([SsdTier(tmp_path, 1 << 24)]) as store:
        damage = {"tier": "ssd", "op": "read", "outcome": "corrupt"}
        assert counted(store, **damage) == [0]
        store.put(make_key(), make_chunk())
        path = chunk_path(tmp_path, make_key())
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert store.read(make_key()).chunk is None
        assert counted(store, **damage) == [1]


def test_every_sample_is_declared(tmp_path: Path) -> None:
    with TieredStore([MemoryTier(1 << 24), SsdTier(tmp_path, 1 << 24)]) as store:
        for name, labels, _ in store_values(store.stats()):
            assert set(labels) == set(WORKER_METRICS[name].labels)
