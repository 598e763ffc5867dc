"""Bad bytes, slow and dead tiers: never an exception, never a wrong answer, always counted."""

import os
import time

import pytest

from kvstitch.kvstore import (
    MemoryTier,
    RedisTier,
    SsdTier,
    TieredStore,
    TierError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)
from kvstitch.kvstore.tier_caller import BreakerSettings
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk
from tests.kvstore.fake_tier import FakeTier, let_cool_down
from tests.redis_server import redis_server

KEY = make_key()
FAST = BreakerSettings(failures=3, cooldown_s=0.2)


@pytest.fixture
def store(near, far):
    with TieredStore([near, far], breaker=FAST) as store:
        yield store


def read_whole(store):
    return store.read(KEY, make_spec())


def read_some(store):
    return store.read_blocks(KEY, {1: [0]}, make_spec())


@pytest.mark.parametrize("read", [read_whole, read_some])
def test_a_corrupt_copy_is_deleted_and_the_next_tier_answers(store, near, far, read):
    for tier in (near, far):
        tier.plant(KEY, make_chunk())
    near.damage(KEY, make_chunk().header.layer_range(1)[0])
    outcome = read(store)
    assert (outcome.tier, outcome.problems) == ("far", (("near", "corrupt"),))
    stats = store.stats().tier("near")
    assert sum(stats.count(op, "corrupt") for op in ("read", "read_blocks")) == 1
    assert stats.healthy, "bad bytes are not a bad tier"
    if read is read_whole:
        assert store.flush(60) and same_chunk(near.read(KEY), make_chunk()), "healed"
    else:
        assert not near.contains([KEY])


@pytest.mark.parametrize(
    "other",
    [make_spec(fingerprint="model-b"), make_spec("int8"), make_spec(tokens=71)],
    ids=["fingerprint", "codec", "tokens"],
)
@pytest.mark.parametrize("read", [read_whole, read_some])
def test_another_chunk_is_refused_and_deleted(store, near, far, read, other):
    near.plant(KEY, make_chunk(other))
    far.plant(KEY, make_chunk(other))
    outcome = read(store)
    assert outcome.tier is None
    assert outcome.problems == (("near", "refused"), ("far", "refused"))
    assert store.contains([KEY]) == set()


def test_only_the_blocks_asked_for_are_judged(store, near):
    near.plant(KEY, make_chunk())
    near.damage(KEY, make_chunk().header.layer_range(0)[0])
    assert read_some(store).tier == "near"
    assert read_whole(store).problems == (("near", "corrupt"),)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TierTimeout("slow"), "timeout"),
        (TimeoutError("slow"), "timeout"),
        (TierUnavailable("down"), "unavailable"),
        (TierError("odd"), "error"),
        (OSError(5, "I/O error"), "error"),
        (RuntimeError("bug in a tier"), "error"),
    ],
)
def test_a_failing_tier_is_named_and_passed_over(store, near, far, error, kind):
    far.plant(KEY, make_chunk())
    near.fail("*", error)
    outcome = read_whole(store)
    assert (outcome.tier, outcome.problems) == ("far", (("near", kind),))
    assert store.stats().tier("near").count("read", kind) == 1
    assert store.put(make_key(1), make_chunk()) is True
    assert store.flush(60) and far.contains([make_key(1)])


def test_a_total_miss_says_what_went_wrong(store, near, far):
    near.plant(KEY, make_chunk())
    near.damage(KEY)
    far.fail("read", TierTimeout("slow"))
    outcome = read_whole(store)
    assert outcome.chunk is None
    assert outcome.problems == (("near", "corrupt"), ("far", "timeout"))


def test_no_room_is_counted_and_no_fault(store, near, far):
    near.fail("put", TierFull("full"))
    for n in range(10):
        assert store.put(make_key(n), make_chunk())
    assert store.flush(60) and len(set(far.keys())) == 10
    stats = store.stats().tier("near")
    assert stats.count("write", "rejected") == 10 and stats.healthy


def test_the_breaker_spares_a_slow_tier(near, far):
    with TieredStore([near, far], breaker=BreakerSettings(cooldown_s=600)) as store:
        check_the_breaker(store, near, far)


def check_the_breaker(store, near, far):
    far.plant(KEY, make_chunk())
    near.fail("read", TierTimeout("slow"))
    kinds = [read_whole(store).problems[0][1] for _ in range(4)]
    assert kinds == ["timeout", "unavailable", "unavailable", "unavailable"]
    assert near.calls["read"] == 1 and not store.stats().tier("near").healthy
    let_cool_down(store)
    assert read_whole(store).problems == (("near", "timeout"),)
    assert near.calls["read"] == 2, "one probe per cool-down"
    near.heal()
    let_cool_down(store)
    assert read_whole(store).problems == () and store.stats().tier("near").healthy


def test_figures_that_ask_no_server_do_not_show_that_it_is_well(near, far):
    """Metrics are read all the time, and S3's are made up at home."""
    near.usage_is_asked = False
    near.fail("read", TierUnavailable("gone"))
    with TieredStore([near, far], breaker=BreakerSettings(failures=3, cooldown_s=600)) as store:
        for _ in range(3):
            assert store.stats().tier("near").healthy
            store.read(KEY)
        assert not store.stats().tier("near").healthy
        near.heal()
        assert store.stats().tier("near").usage.entries == 0, "still told"
        assert not store.stats().tier("near").healthy


def test_a_delete_that_failed_is_kept_and_retried(store, near, far):
    assert store.put(KEY, make_chunk()) and store.flush(60)
    far.fail("delete", TierUnavailable("down"))
    assert store.delete([KEY]) == {"near": 1}
    assert store.stats().tier("far").pending_deletes == 1
    assert far.contains([KEY]), "still there"
    assert store.contains([KEY]) == store.keys() == set(), "but nobody gets it"
    assert read_whole(store).chunk is None and read_some(store).blocks is None
    far.heal()
    give_up_at = time.monotonic() + 120
    while far.contains([KEY]) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not far.contains([KEY])


def test_a_tier_too_slow_for_all_failed_deletes_at_once_gets_them_done(near):
    class Slow(FakeTier):
        def delete(self, keys):
            if len(keys) > 20:
                raise TierTimeout("that many take too long")
            return super().delete(keys)

    keys = [make_key(n) for n in range(50)]
    with TieredStore([near, Slow("far")]) as store:
        for key in keys:
            store.put(key, make_chunk())
        assert store.flush(60) and store.delete(keys) == {"near": 50}
        give_up_at = time.monotonic() + 120
        while store.stats().tier("far").pending_deletes and time.monotonic() < give_up_at:
            time.sleep(0.05)
        assert store.stats().tier("far").pending_deletes == 0
        assert store.locate(keys) == {}


def test_a_new_put_ends_a_pending_delete(store, far):
    store.put(KEY, make_chunk())
    assert store.flush(60)
    far.fail("delete", TierUnavailable("down"))
    store.delete([KEY])
    store.put(KEY, make_chunk())
    assert store.flush(60)
    assert store.stats().tier("far").pending_deletes == 0
    assert store.locate([KEY]) == {KEY: "near"} and read_whole(store).chunk is not None


@pytest.mark.parametrize("where", ["header", "first", "last", "truncated", "emptied"])
def test_damage_on_a_real_disk(tmp_path, where):
    chunk = make_chunk(make_spec("int8"))
    with TieredStore([SsdTier(tmp_path, 1 << 24)]) as store:
        store.put(KEY, chunk)
        path = chunk_path(tmp_path, KEY)
        damaged = bytearray(path.read_bytes())
        match where:
            case "header":
                damaged[30] ^= 4
            case "first":
                damaged[chunk.header.data_start] ^= 4
            case "last":
                damaged[-1] ^= 4
            case "truncated":
                del damaged[-10:]
            case "emptied":
                damaged.clear()
        path.write_bytes(damaged)
        assert store.read(KEY, chunk.spec).problems == (("ssd", "corrupt"),)
        assert not path.exists() and store.read(KEY).problems == ()
        assert store.put(KEY, chunk), "new again"
        assert store.read(KEY, chunk.spec).tier == "ssd"


def test_a_full_disk_is_counted_not_raised(tmp_path, monkeypatch):
    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with TieredStore([MemoryTier(1 << 24), SsdTier(tmp_path, 1 << 24)]) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", no_space)
            assert store.put(KEY, make_chunk())
        assert store.stats().tier("ssd").count("write", "rejected") == 1
        assert store.stats().tier("ssd").usage.used_bytes == 0
        assert store.read(KEY).tier == "memory"


def test_redis_dies_and_comes_back(tmp_path):
    with redis_server() as server:
        redis = RedisTier(server.url, timeout_s=5)
        with TieredStore([redis], breaker=BreakerSettings(failures=2, cooldown_s=600)) as store:
            assert store.put(KEY, make_chunk()) and store.flush(60)
            server.stop()
            kinds = [store.read(KEY).problems for _ in range(5)]
            assert kinds == [(("redis", "unavailable"),)] * 5
            assert store.put(make_key(1), make_chunk()) and store.flush(60)
            assert not store.stats().tier("redis").healthy
            server.start()
            let_cool_down(store)
            assert store.read(KEY).problems == ()
            assert store.put(KEY, make_chunk()) and store.flush(60)
            assert same_chunk(store.read(KEY).chunk, make_chunk())
