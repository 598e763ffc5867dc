"""Extra tensors through the store: kept beside their chunk, deleted with it, never wrong."""

import time

import pytest
import torch

from kvstitch.kvstore import MemoryTier, TieredStore
from kvstitch.kvstore.coordination import QueueLimits
from tests.kvstore.chunks import make_chunk, make_key
from tests.kvstore.fake_tier import FakeTier

KEY = make_key()
SKETCH = {"mean.0": torch.randn(5, 2, 8), "rank.0": torch.arange(5, dtype=torch.int32)}
OTHER = {"mean.0": torch.zeros(5, 2, 8)}


@pytest.fixture
def disk():
    return FakeTier("disk", kind="disk")


@pytest.fixture
def shared():
    return FakeTier("shared", kind="shared")


@pytest.fixture
def store(disk, shared):
    with TieredStore([MemoryTier(1 << 24), disk, shared]) as store:
        yield store


def holds(outcome, tensors, tier):
    return (
        outcome is not None
        and outcome.tier == tier
        and set(outcome.tensors) == set(tensors)
        and all(torch.equal(outcome.tensors[name], tensors[name]) for name in tensors)
    )


def test_put_later_and_read_alone(store, disk, shared):
    store.put(KEY, make_chunk())
    assert store.flush(60) and store.read_extra(KEY, "sketch", 1) is None
    assert store.put_extra(KEY, "sketch", 1, SKETCH)
    assert disk.calls["put_extra"] == 1, "disk is written before put_extra returns"
    assert store.flush(60) and shared.calls["put_extra"] == 1
    outcome = store.read_extra(KEY, "sketch", 1)
    assert holds(outcome, SKETCH, "memory") and outcome.seconds > 0
    assert outcome.nbytes == store.stats().tier("memory").bytes["read_extra"]
    assert not disk.calls["read"] and not disk.calls["read_ranges"]
    assert store.read_extra(KEY, "other", 1) is None


def test_no_extra_without_its_chunk(store, disk, shared):
    assert not store.put_extra(KEY, "sketch", 1, SKETCH)
    assert store.flush(60) and store.read_extra(KEY, "sketch", 1) is None
    assert disk.calls["put_extra"] == shared.calls["put_extra"] == 0


def test_only_tiers_with_the_chunk_get_them(store, disk, shared):
    shared.plant(KEY, make_chunk())
    assert store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(60)
    assert (disk.calls["put_extra"], shared.calls["put_extra"]) == (0, 1)
    assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "memory")


def test_a_chunk_that_waits_to_be_written_gets_its_extra_after_it(shared):
    shared.block("put")
    with TieredStore([shared]) as store:
        store.put(KEY, make_chunk())
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        assert shared.calls["put_extra"] == 0
        shared.release()
        assert store.flush(60)
        assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "shared")


def test_versions_in_the_queue_are_all_written_in_order(shared):
    shared.plant(KEY, make_chunk())
    shared.block("put_extra")
    with TieredStore([shared]) as store:
        for version, tensors in ((1, SKETCH), (2, OTHER)):
            assert store.put_extra(KEY, "sketch", version, tensors)
        shared.release()
        assert store.flush(60)
        assert holds(store.read_extra(KEY, "sketch", 2), OTHER, "shared")


def test_a_dropped_chunk_leaves_no_extra_behind(shared):
    """The queue was full, so the extra tensors reach a tier that does not have their chunk."""
    shared.block("put")
    with TieredStore([shared], write_behind=QueueLimits(items=1)) as store:
        store.put(make_key(1), make_chunk())
        while shared.calls["put"] == 0:
            time.sleep(0.001)
        store.put(KEY, make_chunk())
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        shared.release()
        assert store.flush(60) and store.stats().dropped_writes == 1
        assert store.stats().tier("shared").count("write_extra", "absent") == 1
        assert store.read_extra(KEY, "sketch", 1) is None
