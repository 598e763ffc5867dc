"""Extra tensors that are damaged, deleted or unreachable: reads give the right ones or none."""

import threading
import time

import pytest

from kvstitch.kvstore import (
    MemoryTier,
    SsdTier,
    TieredStore,
    TierTimeout,
    TierUnavailable,
)
from kvstitch.kvstore.format.extra_tensors import encode_extra
from kvstitch.kvstore.tier_caller import BreakerSettings
from kvstitch.kvstore.tiers.ssd.directory_scan import extra_path
from tests.kvstore.chunks import make_chunk, make_key
from tests.kvstore.test_store_extras import KEY, OTHER, SKETCH, holds


@pytest.fixture
def store(near, far):
    with TieredStore([MemoryTier(1 << 24), near, far]) as store:
        yield store


def test_a_corrupt_extra_is_passed_over_and_healed(near, far):
    with TieredStore([near, far]) as store:
        store.put(KEY, make_chunk())
        assert store.flush(60)
        assert store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(60)
        near.damage_extra(KEY, "sketch")
        assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "far")
        stats = store.stats().tier("near")
        assert stats.count("read_extra", "corrupt") == 1 and stats.healthy
        assert store.locate([KEY]) == {KEY: "near"}, "the chunk is sound"
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "near")


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_damage_on_a_real_disk(tmp_path, damage):
    with TieredStore([SsdTier(tmp_path, 1 << 24)]) as store:
        store.put(KEY, make_chunk())
        store.put_extra(KEY, "sketch", 1, SKETCH)
        path = extra_path(tmp_path, KEY, "sketch")
        content = bytearray(path.read_bytes())
        match damage:
            case "flip":
                content[-3] ^= 1
            case "truncate":
                del content[-3:]
            case "empty":
                content.clear()
        path.write_bytes(content)
        if damage == "remove":
            path.unlink()
        assert store.read_extra(KEY, "sketch", 1) is None
        outcome = "miss" if damage == "remove" else "corrupt"
        assert store.stats().tier("ssd").count("read_extra", outcome) == 1
        assert store.read(KEY).chunk is not None
        assert store.put_extra(KEY, "sketch", 1, OTHER)
        assert holds(store.read_extra(KEY, "sketch", 1), OTHER, "ssd")
        assert store.delete([KEY]) == {"ssd": 1}
        assert store.stats().tier("ssd").usage.used_bytes == 0


def test_memory_that_was_written_into():
    with TieredStore([MemoryTier(1 << 24)]) as store:
        store.put(KEY, make_chunk())
        store.put_extra(KEY, "sketch", 1, SKETCH)
        kept = store.read_extra(KEY, "sketch", 1)
        assert kept is not None
        kept.tensors["mean.0"].zero_()
        assert store.read_extra(KEY, "sketch", 1) is None


def test_a_failing_tier_is_passed_over(near, far):
    with TieredStore([near, far], breaker=BreakerSettings(cooldown_s=600)) as store:
        store.put(KEY, make_chunk())
        assert store.flush(60)
        near.fail("put_extra", OSError(28, "No space left"))
        assert store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(60)
        near.fail("read_extra", TierTimeout("slow"))
        for outcome in ("timeout", "unavailable"):
            assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "far")
            assert store.stats().tier("near").count("read_extra", outcome) == 1


def test_a_pending_delete_covers_the_extra(near):
    with TieredStore([near]) as store:
        store.put(KEY, make_chunk())
        store.put_extra(KEY, "sketch", 1, SKETCH)
        near.fail("delete", TierUnavailable("down"))
        store.delete([KEY])
        assert near.read_extra(KEY, "sketch") is not None, "still there"
        assert store.read_extra(KEY, "sketch", 1) is None, "but nobody gets it"
        assert not store.put_extra(KEY, "sketch", 1, SKETCH)
        assert store.stats().tier("near").healthy


def test_a_delete_discards_what_waits(far):
    far.plant(KEY, make_chunk())
    far.block("put")
    with TieredStore([MemoryTier(1 << 24), far]) as store:
        store.put(make_key(1), make_chunk())
        while far.calls["put"] == 0:
            time.sleep(0.001)
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        store.delete([KEY])
        far.release()
        assert store.flush(60) and far.calls["put_extra"] == 0
        assert store.read_extra(KEY, "sketch", 1) is None


def start_and_wait(work, tier, operation):
    """Start it on a thread and wait until it reaches the operation that the tier blocks."""
    before = tier.calls[operation]
    thread = threading.Thread(target=work)
    thread.start()
    while tier.calls[operation] == before:
        time.sleep(0.001)
    return thread


def test_a_put_under_way_does_not_bring_a_deleted_extra_back(store, near, far):
    near.plant(KEY, make_chunk())
    far.block("contains")
    thread = start_and_wait(lambda: store.put_extra(KEY, "sketch", 1, SKETCH), far, "contains")
    store.delete([KEY])
    far.release()
    thread.join(120)
    assert store.flush(60) and store.read_extra(KEY, "sketch", 1) is None


def test_a_read_under_way_does_not_bring_a_deleted_extra_back(store, near):
    near.plant(KEY, make_chunk())
    near.put_extra(KEY, "sketch", encode_extra("sketch", 1, SKETCH, key=KEY).raw)
    near.block("read_extra")
    thread = start_and_wait(lambda: store.read_extra(KEY, "sketch", 1), near, "read_extra")
    store.delete([KEY])
    near.release()
    thread.join(120)
    assert store.read_extra(KEY, "sketch", 1) is None
