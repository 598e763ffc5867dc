"""What the worker tells of its store."""

from __future__ import annotations

from pathlib import Path

from kvstitch.kvstore import MemoryTier, SsdTier, TieredStore, parse_header
from kvstitch.kvstore.format.chunk_header import VERSION
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from kvstitch.service.shared.metrics import WORKER_METRICS
from kvstitch.service.worker.server.counters import store_values
from tests.kvstore.chunks import make_chunk, make_key
from tests.kvstore.format.test_chunk_header import reseal

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


def test_what_the_start_found_on_disk_is_counted(tmp_path: Path) -> None:
    """One file each: damaged, of the version without keys, not a file at all."""
    outcomes = ("corrupt", "refused", "foreign")
    with TieredStore([MemoryTier(1 << 24), SsdTier(tmp_path, 1 << 24)]) as store:
        for outcome in outcomes:
            assert counted(store, tier="ssd", op="scan", outcome=outcome) == [0]
            assert counted(store, tier="memory", op="scan", outcome=outcome) == [0]
        for number in range(4):
            store.put(make_key(number), make_chunk())
    whole, damaged, old, foreign = (chunk_path(tmp_path, make_key(n)) for n in range(4))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    header = parse_header(old.read_bytes())
    version_2 = reseal(header.raw, f'"version":"{VERSION}"', '"version":"2"')
    old.write_bytes(version_2 + old.read_bytes()[header.data_start :])
    foreign.unlink()
    foreign.mkdir()
    with TieredStore([MemoryTier(1 << 24), SsdTier(tmp_path, 1 << 24)]) as store:
        for outcome in outcomes:
            assert counted(store, tier="ssd", op="scan", outcome=outcome) == [1]
            assert counted(store, tier="memory", op="scan", outcome=outcome) == [0]
    assert whole.exists() and foreign.exists() and not damaged.exists() and not old.exists()


def test_every_sample_is_declared(tmp_path: Path) -> None:
    with TieredStore([MemoryTier(1 << 24), SsdTier(tmp_path, 1 << 24)]) as store:
        for name, labels, _ in store_values(store.stats()):
            assert set(labels) == set(WORKER_METRICS[name].labels)
