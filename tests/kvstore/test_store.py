import threading
import time

import pytest
import torch

from kvstitch.kvstore import (
    ChunkCorrupt,
    ChunkSpecError,
    MemoryTier,
    SsdTier,
    StoreConfigError,
    TieredStore,
    TierUnavailable,
)
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk
from tests.kvstore.fake_tier import FakeTier

KEY = make_key()


@pytest.fixture
def shared():
    return FakeTier("shared", kind="shared")


@pytest.fixture
def disk():
    return FakeTier("disk", kind="disk")


@pytest.fixture
def store(disk, shared):
    with TieredStore([MemoryTier(1 << 24), disk, shared]) as store:
        yield store


def test_put_goes_to_every_tier(store, disk, shared):
    assert store.put(KEY, make_chunk())
    assert disk.contains([KEY]), "disk is written before put returns"
    assert store.flush(60) and shared.contains([KEY])
    outcome = store.read(KEY, make_spec())
    assert same_chunk(outcome.chunk, make_chunk())
    assert (outcome.tier, outcome.nbytes) == ("memory", make_chunk().nbytes)
    assert outcome.seconds > 0 and outcome.problems == ()


def test_a_repeated_put_writes_nothing(store, disk, shared):
    chunk = make_chunk()
    assert store.put(KEY, chunk) and store.flush(60)
    for _ in range(3):
        assert not store.put(KEY, chunk)
    assert store.flush(60)
    assert (disk.calls["put"], shared.calls["put"]) == (1, 1)
    stats = store.stats()
    assert (stats.new_keys, stats.already_present) == (1, 3)


def test_a_put_fills_the_tiers_that_lack_it(store, disk, shared):
    store.put(KEY, make_chunk())
    assert store.flush(60)
    disk.delete([KEY])
    assert not store.put(KEY, make_chunk())
    assert disk.contains([KEY]) and store.stats().new_keys == 1


def test_put_refuses_bytes_that_changed_since_encoding(store, disk):
    chunk = make_chunk()
    chunk.data[5] ^= 1
    with pytest.raises(ChunkCorrupt):
        store.put(KEY, chunk)
    assert not disk.contains([KEY])


def test_a_read_promotes(store, disk, shared):
    shared.plant(KEY, make_chunk())
    assert store.locate([KEY]) == {KEY: "shared"}
    assert store.read(KEY).tier == "shared"
    assert store.locate([KEY]) == {KEY: "memory"}
    assert store.flush(60) and disk.contains([KEY]), "promotion to disk is nobody's wait"
    assert store.read(KEY).tier == "memory"


def test_a_read_starts_where_the_chunk_was_found(store, disk, shared):
    shared.plant(KEY, make_chunk())
    found = store.locate([KEY])[KEY]
    assert store.read_blocks(KEY, {0: [0]}, tier=found).tier == "shared"
    assert store.read(KEY, tier=found).tier == "shared"
    assert disk.calls["read"] == disk.calls["read_header"] == 0, "it said that it has nothing"
    for op in ("read", "read_blocks"):
        assert [store.stats().tier(name).count(op, "miss") for name in ("memory", "disk")] == [1, 1]
    assert store.locate([KEY]) == {KEY: "memory"}


def test_a_miss(store):
    outcome = store.read(KEY)
    assert (outcome.chunk, outcome.tier, outcome.nbytes, outcome.problems) == (None, None, 0, ())


def test_locate_contains_keys(store, disk, shared):
    store.put(KEY, make_chunk())
    disk.plant(make_key(1), make_chunk())
    shared.plant(make_key(2), make_chunk())
    keys = [make_key(n) for n in range(4)]
    assert store.locate(keys) == {KEY: "memory", make_key(1): "disk", make_key(2): "shared"}
    assert store.contains(keys) == store.keys() == set(keys[:3])
    assert disk.calls["read"] == shared.calls["read"] == 0


def wait_for(tier: FakeTier, operation: str) -> None:
    while tier.calls[operation] == 0:
        time.sleep(0.001)


def test_delete_waits_for_a_put_under_way(store, disk):
    disk.block("put")
    putter = threading.Thread(target=store.put, args=(KEY, make_chunk()))
    putter.start()
    wait_for(disk, "put")
    deleter = threading.Thread(target=store.delete, args=([KEY],))
    deleter.start()
    deleter.join(0.05)
    assert disk.calls["delete"] == 0
    disk.release()
    putter.join(120)
    deleter.join(120)
    assert store.flush(60) and store.contains([KEY]) == set()


def test_delete_empties_the_queue_and_waits_for_a_write_under_way(store, shared):
    shared.block("put")
    for n in range(3):
        store.put(make_key(n), make_chunk(seed=n))
    wait_for(shared, "put")
    shared.release_when(lambda: store.stats().pending_writes == 2)
    removed = store.delete([make_key(0), make_key(1)])
    assert removed == {"memory": 2, "disk": 2, "shared": 1}
    assert store.flush(60) and store.keys() == {make_key(2)}


def test_a_read_under_way_does_not_bring_a_deleted_chunk_back(store, disk):
    disk.plant(KEY, make_chunk())
    disk.block("read")
    reader = threading.Thread(target=store.read, args=(KEY,))
    reader.start()
    wait_for(disk, "read")
    assert store.delete([KEY])["disk"] == 1
    disk.release()
    reader.join(120)
    assert store.flush(60) and store.contains([KEY]) == set()


def test_what_waits_to_be_written_is_present(shared):
    shared.block("put")
    with TieredStore([shared]) as store:
        assert store.put(KEY, make_chunk()) and not store.put(KEY, make_chunk())
        wait_for(shared, "put")
        assert not store.put(KEY, make_chunk())
        shared.release()
        assert store.flush(60)
    assert shared.calls["put"] == 1


def test_delete_counts_copies(store):
    for n in range(3):
        store.put(make_key(n), make_chunk(seed=n))
    assert store.flush(60)
    assert store.delete([make_key(0), make_key(1), make_key(9)]) == {
        "memory": 2,
        "disk": 2,
        "shared": 2,
    }
    assert store.keys() == {make_key(2)}


def test_what_only_this_machine_holds_is_deleted_and_nothing_comes_after(store, disk, shared):
    store.put(make_key(0), make_chunk())
    assert store.flush(60)
    shared.block("put")
    for n in (1, 2):
        store.put(make_key(n), make_chunk(seed=n))
    wait_for(shared, "put")  # one is being written, the other waits
    shared.release_when(lambda: store.stats().pending_writes == 1)
    assert store.keeps_on_disk and store.delete_own()
    assert store.flush(60) and store.keys() == set(shared.keys()) == {make_key(0), make_key(1)}
    assert set(disk.keys()) == set()
    disk.fail("keys", TierUnavailable("away"))
    store.put(make_key(3), make_chunk(seed=3))
    assert not store.delete_own()  # it is not known what there is
    disk.heal()
    assert store.flush(60)


def test_many_readers_share_one_read(store, disk):
    disk.plant(KEY, make_chunk())
    disk.block("read")
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(store.read(KEY))) for _ in range(12)]
    for thread in threads:
        thread.start()
    wait_for(disk, "read")
    time.sleep(0.05)  # let the others arrive
    disk.release()
    for thread in threads:
        thread.join(120)
    assert all(same_chunk(outcome.chunk, make_chunk()) for outcome in outcomes)
    # A late thread reads from memory, so the slow tier is read once in any case.
    assert disk.calls["read"] == 1


def test_many_writers_make_one_key(store, disk):
    chunk = make_chunk()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(store.put(KEY, chunk))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sum(results) == 1 and disk.calls["put"] == 1
    assert (store.stats().new_keys, store.stats().already_present) == (1, 11)


@pytest.mark.parametrize(
    "operation", ["put", "read", "read_blocks", "put_extra", "read_extra", "delete"]
)
def test_only_chunk_keys(store, operation):
    arguments = {
        "put": ("../x", make_chunk()),
        "read": ("../x",),
        "read_blocks": ("../x", {0: [0]}),
        "put_extra": ("../x", "sketch", 1, {}),
        "read_extra": ("../x", "sketch", 1),
        "delete": (["../x"],),
    }[operation]
    with pytest.raises(ChunkSpecError, match="not a chunk key"):
        getattr(store, operation)(*arguments)


def test_names_are_unique():
    with pytest.raises(ValueError, match="different names"):
        TieredStore([MemoryTier(1), MemoryTier(1)])


def test_a_tier_that_cannot_start_closes_the_others(tmp_path):
    owner = SsdTier(tmp_path / "b", 1 << 20)
    owner.start()
    first = SsdTier(tmp_path / "a", 1 << 20, name="first")
    with pytest.raises(TierUnavailable):
        TieredStore([first, SsdTier(tmp_path / "b", 1 << 20)]).start()
    with pytest.raises(TierUnavailable, match="not started"):
        first.read(KEY)
    owner.close()


def test_stats_are_counters(store, disk):
    store.put(KEY, make_chunk())
    store.read(KEY)
    store.read(make_key(1))
    assert store.flush(60)
    counters = {
        (tier.name, op, outcome): count
        for tier in store.stats().tiers
        for (op, outcome), count in tier.ops.items()
    }
    assert counters["memory", "read", "hit"] == counters["memory", "read", "miss"] == 1
    assert counters["disk", "read", "miss"] == counters["shared", "write", "ok"] == 1
    memory = store.stats().tier("memory")
    assert memory.bytes["read"] == memory.bytes["write"] == make_chunk().nbytes
    assert memory.usage.entries == 1 and memory.healthy and memory.seconds["read"] > 0
    with pytest.raises(KeyError):
        store.stats().tier("tape")


def test_tiers_that_are_not_written_to_get_only_what_is_read(near, far):
    """E.g. bulk precomputation that goes to the cold tier without filling the shared one."""
    mid = FakeTier("mid", kind="shared")
    sketch = {"mean": torch.arange(3)}
    with TieredStore([near, mid, far], write_to=["far"]) as store:
        assert store.put(make_key(), make_chunk()) and store.flush(60)
        assert not near.contains([make_key()]) and not mid.contains([make_key()])
        assert far.contains([make_key()])
        assert not store.put(make_key(), make_chunk()), "known"
        assert store.read(make_key()).tier == "far" and store.flush(60)
        assert near.contains([make_key()]) and mid.contains([make_key()])
        assert store.put_extra(make_key(), "sketch", 1, sketch) and store.flush(60)
        assert far.read_extra(make_key(), "sketch") is not None
        assert near.read_extra(make_key(), "sketch") is mid.read_extra(make_key(), "sketch") is None


def test_writing_to_a_tier_that_is_not_there(near):
    with pytest.raises(StoreConfigError, match="s3"):
        TieredStore([near], write_to=["s3"])


def test_a_slow_tier_holds_up_no_other_tiers_writes(near, far):
    quick = FakeTier("quick", kind="shared")
    far.block("put")
    with TieredStore([near, quick, far]) as store:
        for n in range(5):
            store.put(make_key(n), make_chunk(seed=n))
        give_up_at = time.monotonic() + 120
        while len(list(quick.keys())) < 5 and time.monotonic() < give_up_at:
            time.sleep(0.005)
        assert len(list(quick.keys())) == 5 and not far.contains([make_key(0)])
        assert store.stats().pending_writes == 5
        far.release()
        assert store.flush(60) and len(list(far.keys())) == 5


def test_a_store_that_writes_through_has_a_chunk_when_every_tier_took_it(disk, shared):
    other = FakeTier("other", kind="shared")
    tiers, written = [disk, shared, other], ["shared", "other"]
    with TieredStore(tiers, write_to=written, write_through=True) as store:
        assert store.put(KEY, make_chunk())
        assert shared.contains([KEY]) and other.contains([KEY]) and not disk.contains([KEY])
        assert store.contains([KEY]) == {KEY}
        shared.delete([KEY])
        assert store.contains([KEY]) == set()
        assert not store.put(KEY, make_chunk())  # of one tier that lacked it
        assert store.contains([KEY]) == {KEY}
        assert (shared.calls["put"], other.calls["put"]) == (2, 1)


def test_a_store_that_writes_through_says_which_tier_did_not_take_a_chunk(shared):
    other = FakeTier("other", kind="shared")
    other.fail("put", TierUnavailable("away"))
    with TieredStore([shared, other], write_through=True) as store:
        with pytest.raises(TierUnavailable, match="other did not take"):
            store.put(KEY, make_chunk())
        assert store.contains([KEY]) == set()
