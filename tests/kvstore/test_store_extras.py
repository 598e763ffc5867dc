"""Extra tensors through the store: beside their chunk, gone with it, never wrong."""

import random
import threading
import time

import pytest
import redis
import torch

from kvstore import ChunkSpecError, MemoryTier, RedisTier, SsdTier, TieredStore, TierTimeout
from kvstore.extra import encode_extra
from kvstore.tiers.breaker import BreakerSettings
from kvstore.tiers.fake import FakeTier
from kvstore.tiers.scan import extra_path
from kvstore.writebehind import QueueLimits
from tests.kvstore.chunks import make_chunk, make_key

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
    assert store.flush(10) and store.read_extra(KEY, "sketch", 1) is None
    assert store.put_extra(KEY, "sketch", 1, SKETCH)
    assert disk.calls["put_extra"] == 1, "disk is written before put_extra returns"
    assert store.flush(10) and shared.calls["put_extra"] == 1
    outcome = store.read_extra(KEY, "sketch", 1)
    assert holds(outcome, SKETCH, "memory") and outcome.seconds > 0
    assert outcome.nbytes == store.stats().tier("memory").bytes["read_extra"]
    assert not disk.calls["read"] and not disk.calls["read_ranges"]
    assert store.read_extra(KEY, "other", 1) is None


@pytest.mark.parametrize("kind", ["memory", "ssd", "redis"])
def test_every_tier_keeps_counts_and_deletes_them(kind, tmp_path, redis_at):
    tier = {
        "memory": lambda: MemoryTier(1 << 24),
        "ssd": lambda: SsdTier(tmp_path, 1 << 24),
        "redis": lambda: RedisTier(redis_at.url, timeout_s=5),
    }[kind]()
    with TieredStore([tier]) as store:
        store.put(KEY, make_chunk())
        assert store.put_extra(KEY, "sketch", 7, SKETCH) and store.flush(10)
        outcome = store.read_extra(KEY, "sketch", 7)
        assert holds(outcome, SKETCH, kind)
        assert store.put_extra(KEY, "sketch", 8, OTHER) and store.flush(10)
        assert holds(store.read_extra(KEY, "sketch", 8), OTHER, kind)
        assert store.read_extra(KEY, "sketch", 7) is None
        stats = store.stats().tier(kind)
        assert (stats.count("read_extra", "hit"), stats.count("read_extra", "refused")) == (2, 1)
        assert stats.count("write_extra", "ok") == 2 and stats.healthy
        assert store.delete([KEY]) == {kind: 1}
        assert store.read_extra(KEY, "sketch", 8) is None
        assert store.stats().tier(kind).count("read_extra", "miss") == 1
        if kind == "ssd":
            assert not [path for path in tmp_path.glob("??/??/*")]
        if kind == "redis":
            with redis.Redis.from_url(redis_at.url) as client:
                assert client.keys() == []
        else:
            assert store.stats().tier(kind).usage.used_bytes == 0


def test_they_survive_a_restart_and_reach_other_machines(tmp_path, redis_at):
    def open_store(directory):
        redis_tier = RedisTier(redis_at.url, timeout_s=5)
        return TieredStore(
            [MemoryTier(1 << 24), SsdTier(tmp_path / directory, 1 << 24), redis_tier]
        )

    with open_store("a") as store:
        store.put(KEY, make_chunk())
        assert store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(10)
    for directory, first in (("a", "ssd"), ("b", "redis")):
        with open_store(directory) as store:
            assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, first)
            assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "memory")
            assert store.locate([KEY]) == {KEY: first}, "the chunk itself was not moved"
    with open_store("b") as store:
        store.delete([KEY])
        assert store.read_extra(KEY, "sketch", 1) is None


def test_no_extra_without_its_chunk(store, disk, shared):
    assert not store.put_extra(KEY, "sketch", 1, SKETCH)
    assert store.flush(10) and store.read_extra(KEY, "sketch", 1) is None
    assert disk.calls["put_extra"] == shared.calls["put_extra"] == 0


def test_only_tiers_with_the_chunk_get_them(store, disk, shared):
    shared.plant(KEY, make_chunk())
    assert store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(10)
    assert (disk.calls["put_extra"], shared.calls["put_extra"]) == (0, 1)
    assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "memory")


def test_a_chunk_that_waits_to_be_written_gets_its_extra_after_it(shared):
    shared.block("put")
    with TieredStore([shared]) as store:
        store.put(KEY, make_chunk())
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        assert shared.calls["put_extra"] == 0
        shared.release()
        assert store.flush(10)
        assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "shared")


def test_versions_in_the_queue_are_all_written_in_order(shared):
    shared.plant(KEY, make_chunk())
    shared.block("put_extra")
    with TieredStore([shared]) as store:
        for version, tensors in ((1, SKETCH), (2, OTHER)):
            assert store.put_extra(KEY, "sketch", version, tensors)
        shared.release()
        assert store.flush(10)
        assert holds(store.read_extra(KEY, "sketch", 2), OTHER, "shared")


def test_a_dropped_chunk_leaves_no_extra_behind(shared):
    """The queue was full: the extra comes to a tier that does not have its chunk."""
    shared.block("put")
    with TieredStore([shared], write_behind=QueueLimits(items=1)) as store:
        store.put(make_key(1), make_chunk())
        while shared.calls["put"] == 0:
            time.sleep(0.001)
        store.put(KEY, make_chunk())
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        shared.release()
        assert store.flush(10) and store.stats().dropped_writes == 1
        assert store.stats().tier("shared").count("write_extra", "absent") == 1
        assert store.read_extra(KEY, "sketch", 1) is None


# Bad bytes.


def test_a_corrupt_extra_is_passed_over_and_healed(disk, shared):
    with TieredStore([disk, shared]) as store:
        store.put(KEY, make_chunk())
        assert store.flush(10)
        assert store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(10)
        disk.damage_extra(KEY, "sketch")
        assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "shared")
        stats = store.stats().tier("disk")
        assert stats.count("read_extra", "corrupt") == 1 and stats.healthy
        assert store.locate([KEY]) == {KEY: "disk"}, "the chunk is sound"
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "disk")


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


def test_damage_in_redis(redis_at):
    with TieredStore([RedisTier(redis_at.url, timeout_s=5)]) as store:
        store.put(KEY, make_chunk())
        assert store.flush(10) and store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(10)
        with redis.Redis.from_url(redis_at.url) as client:
            name = f"kvstitch:{{{KEY}}}:x"
            content = bytearray(client.hget(name, "sketch"))
            content[-1] ^= 1
            client.hset(name, "sketch", bytes(content))
        assert store.read_extra(KEY, "sketch", 1) is None
        assert store.stats().tier("redis").count("read_extra", "corrupt") == 1


def test_memory_that_was_written_into():
    with TieredStore([MemoryTier(1 << 24)]) as store:
        store.put(KEY, make_chunk())
        store.put_extra(KEY, "sketch", 1, SKETCH)
        store.read_extra(KEY, "sketch", 1).tensors["mean.0"].zero_()
        assert store.read_extra(KEY, "sketch", 1) is None


# Slow tiers and deletions.


def test_a_failing_tier_is_passed_over(disk, shared):
    with TieredStore([disk, shared], breaker=BreakerSettings(cooldown_s=600)) as store:
        store.put(KEY, make_chunk())
        assert store.flush(10)
        disk.fail("put_extra", OSError(28, "No space left"))
        assert store.put_extra(KEY, "sketch", 1, SKETCH) and store.flush(10)
        disk.fail("read_extra", TierTimeout("slow"))
        for outcome in ("timeout", "unavailable"):
            assert holds(store.read_extra(KEY, "sketch", 1), SKETCH, "shared")
            assert store.stats().tier("disk").count("read_extra", outcome) == 1


def test_an_owed_delete_covers_the_extra(disk):
    with TieredStore([disk], breaker=BreakerSettings(cooldown_s=600)) as store:
        store.put(KEY, make_chunk())
        store.put_extra(KEY, "sketch", 1, SKETCH)
        disk.fail("delete", TierTimeout("slow"))
        store.delete([KEY])
        disk.heal()
        assert disk.read_extra(KEY, "sketch") is not None, "still there"
        assert store.read_extra(KEY, "sketch", 1) is None, "but nobody gets it"
        assert not store.put_extra(KEY, "sketch", 1, SKETCH)


def test_a_delete_discards_what_waits(shared):
    shared.plant(KEY, make_chunk())
    shared.block("put")
    with TieredStore([MemoryTier(1 << 24), shared]) as store:
        store.put(make_key(1), make_chunk())
        while shared.calls["put"] == 0:
            time.sleep(0.001)
        assert store.put_extra(KEY, "sketch", 1, SKETCH)
        store.delete([KEY])
        shared.release()
        assert store.flush(10) and shared.calls["put_extra"] == 0
        assert store.read_extra(KEY, "sketch", 1) is None


@pytest.mark.parametrize("operation", ["contains", "read_extra"])
def test_an_operation_under_way_does_not_bring_a_deleted_extra_back(store, disk, operation):
    disk.plant(KEY, make_chunk())
    disk.put_extra(KEY, "sketch", encode_extra("sketch", 1, SKETCH).raw)
    disk.block(operation)
    started = disk.calls[operation]
    work = {
        "contains": lambda: store.put_extra(KEY, "sketch", 1, SKETCH),
        "read_extra": lambda: store.read_extra(KEY, "sketch", 1),
    }[operation]
    thread = threading.Thread(target=work)
    thread.start()
    while disk.calls[operation] == started:
        time.sleep(0.001)
    store.delete([KEY])
    disk.release()
    thread.join(10)
    assert store.flush(10) and store.read_extra(KEY, "sketch", 1) is None


def test_bad_names_and_tensors(store):
    store.put(KEY, make_chunk())
    for call in (
        lambda: store.put_extra(KEY, "No", 1, SKETCH),
        lambda: store.read_extra(KEY, "../x", 1),
        lambda: store.put_extra(KEY, "sketch", 1, {"z": torch.ones(1, dtype=torch.complex64)}),
    ):
        with pytest.raises(ChunkSpecError):
            call()


def test_many_threads(tmp_path, redis_at):
    """Whatever is put, evicted and deleted meanwhile: a sketch is the right one or none."""
    sketches = [{"id": torch.full((50 + n,), n)} for n in range(4)]
    chunk = make_chunk()
    wrong: list[str] = []
    tiers = [
        MemoryTier(2 * chunk.nbytes),
        SsdTier(tmp_path, 3 * chunk.nbytes, fsync=False),
        RedisTier(redis_at.url, timeout_s=10),
    ]

    def work(seed: int) -> None:
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
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
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
