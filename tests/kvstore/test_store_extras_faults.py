"""Extra tensors that are damaged, deleted or unreachable: reads give the right ones or none."""

import random
import threading
import time

import pytest
import redis
import torch

from kvstore import (
    MemoryTier,
    RedisTier,
    SsdTier,
    TieredStore,
    TierTimeout,
    TierUnavailable,
)
from kvstore.circuit_breaker import BreakerSettings
from kvstore.format.extra_tensors import encode_extra
from kvstore.tiers.base import Tier
from kvstore.tiers.ssd.directory_scan import extra_path
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


def test_many_threads(tmp_path, redis_at):
    """With puts, evictions and deletes at the same time, reads give the right sketch or none."""
    sketches = [{"id": torch.full((50 + n,), n)} for n in range(4)]
    chunk = make_chunk()
    wrong: list[str] = []
    tiers: list[Tier] = [
        MemoryTier(2 * chunk.nbytes),
        SsdTier(tmp_path, 3 * chunk.nbytes, fsync=False),
        RedisTier(redis_at.url, timeout_s=10),
    ]

    def work(store: TieredStore, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            n = rng.randrange(4)
            match rng.randrange(6):
                case 0 | 1:
                    store.put(make_key(n), chunk)
                case 2:
                    store.delete([make_key(n)])
                case 3:
                    store.put_extra(make_key(n), "sketch", 1, sketches[n])
                case _:
                    got = store.read_extra(make_key(n), "sketch", 1)
                    if got is not None and not torch.equal(got.tensors["id"], sketches[n]["id"]):
                        wrong.append(str(n))

    with TieredStore(tiers) as store:
        threads = [threading.Thread(target=work, args=(store, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not wrong and not any(thread.is_alive() for thread in threads)
        assert store.flush(30)
        ssd = store.stats().tier("ssd").usage
        on_disk = sum(path.stat().st_size for path in tmp_path.glob("??/??/*"))
        assert ssd.used_bytes == on_disk <= ssd.capacity_bytes
        chunks = {path.stem for path in tmp_path.glob("??/??/*.safetensors")}
        extras = {path.name.partition(".")[0] for path in tmp_path.glob("??/??/*.extra")}
        assert extras <= chunks
        store.delete([make_key(n) for n in range(4)])
        assert store.stats().tier("memory").usage.used_bytes == 0
        assert not list(tmp_path.glob("??/??/*")) and not list((tmp_path / "tmp").iterdir())
        with redis.Redis.from_url(redis_at.url) as client:
            assert client.keys() == []
