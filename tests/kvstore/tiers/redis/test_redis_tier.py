"""Against a real redis-server."""

import socket
import time
from contextlib import suppress

import pytest
import redis
import torch

from kvstitch.kvstore import (
    ChunkCorrupt,
    ChunkRefused,
    RedisTier,
    TieredStore,
    TierError,
    TierFull,
    TierTimeout,
)
from kvstitch.kvstore.format.chunk import selection_ranges
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk
from tests.kvstore.format.test_chunk_header import VERSION_1
from tests.redis_server import redis_server


def started(url, **options):
    tier = RedisTier(url, **{"timeout_s": 5, **options})
    tier.start()
    return tier


@pytest.fixture
def tier(redis_at):
    tier = started(redis_at.url)
    yield tier
    tier.close()


@pytest.fixture
def raw(redis_at):
    with redis.Redis.from_url(redis_at.url) as client:
        yield client


def test_one_value_per_layer_in_one_slot(tier, raw):
    chunk = make_chunk()
    tier.put(make_key(), chunk)
    head = f"kvstitch:{{{make_key()}}}"
    assert set(raw.keys()) == {f"{head}:{part}".encode() for part in ("h", 0, 1, 2)}
    assert raw.get(f"{head}:h") == chunk.header_bytes
    assert raw.get(f"{head}:1") == chunk.layer_bytes(1).numpy().tobytes()
    assert raw.ttl(f"{head}:h") == -1


def test_ttl_is_set_and_renewed_by_a_read(redis_at, raw):
    tier = started(redis_at.url, ttl_s=100)
    tier.put(make_key(), make_chunk())
    names = raw.keys()
    assert len(names) == 4 and all(90 < raw.ttl(name) <= 100 for name in names)
    for name in names:
        raw.expire(name, 5)
    tier.read(make_key())
    assert all(90 < raw.ttl(name) <= 100 for name in names)
    tier.close()


def test_a_sparse_read_is_one_round_trip_and_renews_everything(redis_at, raw):
    tier = started(redis_at.url, ttl_s=100)
    chunk = make_chunk(make_spec(layers=4, tokens=1000))
    tier.put(make_key(), chunk)
    tier.put_extra(make_key(), "sketch", chunk.data[:50])
    names = raw.keys()
    for name in names:
        raw.expire(name, 5)
    ranges = selection_ranges({0: (0, 3), 2: (15,)}, chunk.spec)
    with raw.monitor() as monitor:
        tier.read_ranges(make_key(), chunk.header, ranges)
        raw.ping()
        seen = []
        while (command := monitor.next_command()["command"]) != "PING":
            seen.append(command)
    seen = [command for command in seen if "kvstitch" in command]
    head = f"kvstitch:{{{make_key()}}}"
    fetched = [command for command in seen if command.startswith("GETRANGE")]
    assert len(fetched) == len(ranges) == 6
    assert {command.split()[1] for command in fetched} == {f"{head}:0", f"{head}:2"}
    assert len(seen) == 6 + 6, "nothing but the ranges and one EXPIRE per value"
    assert len(names) == 6 and all(90 < raw.ttl(name) <= 100 for name in names)
    tier.close()


@pytest.mark.parametrize("keep", [0, 1100, -1])
def test_a_layer_that_is_too_short(tier, raw, keep):
    chunk = make_chunk()
    tier.put(make_key(), chunk)
    name = f"kvstitch:{{{make_key()}}}:1"
    raw.set(name, raw.get(name)[:keep])
    with pytest.raises(ChunkCorrupt, match="layer 1"):
        tier.read(make_key())
    ranges = selection_ranges({1: (0, 1)}, chunk.spec)
    if keep:
        with pytest.raises(ChunkCorrupt, match="layer 1"):
            tier.read_ranges(make_key(), chunk.header, ranges)
    else:  # Redis gives nothing, as if there were no value
        assert tier.read_ranges(make_key(), chunk.header, ranges) is None
        assert raw.keys() == []


def test_a_delete_between_finding_the_chunk_and_writing_its_extra(tier, raw, monkeypatch):
    """A deleted chunk must not leave extra tensors behind."""
    tier.put(make_key(), make_chunk())
    multi = redis.client.Pipeline.multi
    raced: list[int] = []

    def delete_first(pipeline):
        if not raced:
            raced.append(tier.delete([make_key()]))
        multi(pipeline)

    monkeypatch.setattr(redis.client.Pipeline, "multi", delete_first)
    assert not tier.put_extra(make_key(), "sketch", make_chunk().data)
    assert raced == [1] and raw.keys() == []


@pytest.mark.parametrize("whole", [True, False])
def test_a_partly_evicted_chunk_is_a_miss_and_cleaned_up(tier, raw, whole):
    chunk = make_chunk()
    tier.put(make_key(), chunk)
    raw.delete(f"kvstitch:{{{make_key()}}}:1")
    if whole:
        assert tier.read(make_key()) is None
    else:
        ranges = selection_ranges({0: (0,), 1: (0,)}, chunk.spec)
        assert tier.read_ranges(make_key(), chunk.header, ranges) is None
    assert raw.keys() == []


def test_delete_finds_layers_without_their_header(tier, raw):
    tier.put(make_key(), make_chunk())
    raw.delete(f"kvstitch:{{{make_key()}}}:h")
    assert tier.contains([make_key()]) == set() and tier.read(make_key()) is None
    assert tier.delete([make_key()]) == 1
    assert raw.keys() == []


def test_a_chunk_without_its_header_can_be_put_again(tier, raw):
    tier.put(make_key(), make_chunk())
    raw.delete(f"kvstitch:{{{make_key()}}}:h")
    tier.put(make_key(), make_chunk(seed=1))
    assert same_chunk(tier.read(make_key()), make_chunk(seed=1))


@pytest.mark.parametrize("ttl", [None, 100])
def test_extras_live_as_long_as_their_chunk(redis_at, raw, ttl):
    tier = started(redis_at.url, ttl_s=ttl)
    tier.put(make_key(), make_chunk())
    assert tier.put_extra(make_key(), "sketch", make_chunk().data[:50])
    name = f"kvstitch:{{{make_key()}}}:x"
    assert set(raw.hkeys(name)) == {b"sketch"}
    assert raw.ttl(name) == -1 if ttl is None else 90 < raw.ttl(name) <= ttl
    if ttl is not None:
        raw.expire(name, 5)
        tier.read(make_key())
        assert raw.ttl(name) > 90
    raw.delete(f"kvstitch:{{{make_key()}}}:h")
    assert not tier.put_extra(make_key(), "other", make_chunk().data[:50])
    assert tier.delete([make_key()]) == 1 and raw.keys() == []
    tier.close()


def test_no_room_for_an_extra():
    with redis_server(maxmemory="3mb") as server:
        tier = started(server.url)
        tier.put(make_key(), make_chunk())
        with pytest.raises(TierFull):
            for n in range(100):
                tier.put_extra(make_key(), f"x{n}", make_chunk(make_spec(tokens=2000)).data)
        assert tier.read_extra(make_key(), "x0") is not None
        tier.close()


def test_a_version_1_chunk_is_refused(tier, raw):
    raw.set(f"kvstitch:{{{make_key()}}}:h", VERSION_1[:512])
    raw.set(f"kvstitch:{{{make_key()}}}:0", VERSION_1[512:])
    for read in (tier.read, tier.read_header):
        with pytest.raises(ChunkRefused):
            read(make_key())


def test_many_batches(redis_at, monkeypatch):
    monkeypatch.setattr("kvstitch.kvstore.tiers.redis.chunk_values.BATCH_BYTES", 1)
    tier = started(redis_at.url)
    chunk = make_chunk(make_spec("int8", layers=20))
    tier.put(make_key(), chunk)
    assert same_chunk(tier.read(make_key()), chunk)
    ranges = selection_ranges({layer: (0,) for layer in range(20)}, chunk.spec)
    want = torch.cat([chunk.data[start:end] for _, start, end in ranges])
    assert torch.equal(tier.read_ranges(make_key(), chunk.header, ranges), want)
    tier.close()


def test_no_room_is_no_chunk():
    with redis_server(maxmemory="3mb") as server, redis.Redis.from_url(server.url) as client:
        tier = started(server.url)
        chunk = make_chunk(make_spec(tokens=4000))
        stored = 0
        with pytest.raises(TierFull):
            while True:
                tier.put(make_key(stored), chunk)
                stored += 1
        assert stored < 10 and client.dbsize() == 4 * stored
        assert all(same_chunk(tier.read(make_key(n)), chunk) for n in range(stored))
        assert tier.usage().capacity_bytes == 3 << 20
        tier.close()


def test_redis_own_eviction_never_gives_half_a_chunk():
    with redis_server(maxmemory="6mb", policy="allkeys-random") as server:
        tier = started(server.url)
        chunks = [make_chunk(make_spec(tokens=1000), seed=n) for n in range(4)]
        for n in range(80):
            tier.put(make_key(n), chunks[n % 4])
        got = [tier.read(make_key(n)) for n in range(80)]
        assert tier.usage().evictions > 0
        assert 0 < sum(chunk is not None for chunk in got) < 80
        assert all(same_chunk(c, chunks[n % 4]) for n, c in enumerate(got) if c is not None)
        tier.close()


def test_a_frozen_server_is_a_timeout_not_a_hang():
    with redis_server() as server:
        patient = started(server.url, timeout_s=30)
        patient.put(make_key(), make_chunk())
        patient.close()
        tier = started(server.url, timeout_s=0.2)
        server.freeze()
        begun, header = time.monotonic(), make_chunk().header
        for call in (
            lambda: tier.read(make_key()),
            lambda: tier.contains([make_key()]),
            lambda: tier.put(make_key(1), make_chunk()),
            lambda: tier.delete([make_key()]),
            lambda: tier.read_ranges(make_key(), header, selection_ranges({0: (0,)}, header.spec)),
            lambda: tier.put_extra(make_key(), "sketch", make_chunk().data),
            lambda: tier.read_extra(make_key(), "sketch"),
            tier.usage,
            tier.keys,
        ):
            with pytest.raises(TierTimeout):
                call()
        assert time.monotonic() - begun < 60
        server.thaw()
        for _ in range(300):  # a busy machine may take longer than the tier waits
            with suppress(TierTimeout):
                assert same_chunk(tier.read(make_key()), make_chunk())
                break
        else:
            raise AssertionError("it does not come back")
        tier.close()


def test_the_deadline_of_a_read(redis_at):
    tier = started(redis_at.url, deadline_s=-1.0)
    tier.put(make_key(), make_chunk())
    with pytest.raises(TierTimeout, match="took over"):
        tier.read(make_key())
    with pytest.raises(TierTimeout, match="took over"):
        tier.read_ranges(make_key(), make_chunk().header, selection_ranges({0: (0,)}, make_spec()))
    tier.close()


def test_other_server_errors_are_tier_errors(tier, raw):
    raw.acl_setuser("default", commands=["-get"], enabled=True)
    try:
        with pytest.raises(TierError, match="no permissions"):
            tier.read(make_key())
    finally:
        raw.acl_setuser("default", commands=["+get"], enabled=True)


@pytest.mark.parametrize("part", ["h", "1", "x"])
def test_a_name_with_something_of_another_type_is_damage_and_is_replaced(redis_at, raw, part):
    """Damage of one chunk, not a fault of the tier: other chunks must not suffer from it."""
    sketch = {"mean": torch.arange(9)}
    with TieredStore([RedisTier(redis_at.url, timeout_s=10)]) as store:
        for _ in range(5):
            store.put(make_key(), make_chunk())
            assert store.flush(60) and store.put_extra(make_key(), "sketch", 1, sketch)
            assert store.flush(60) and store.read_extra(make_key(), "sketch", 1) is not None
            raw.delete(f"kvstitch:{{{make_key()}}}:{part}")
            raw.lpush(f"kvstitch:{{{make_key()}}}:{part}", "a list")
            outcome = store.read(make_key())
            assert outcome.problems == (() if part == "x" else (("redis", "corrupt"),))
            assert store.read_extra(make_key(), "sketch", 1) is None
        tier = store.stats().tier("redis")
        assert tier.healthy and not tier.count("read", "error")


def test_names_of_somebody_else_are_no_keys(tier, raw):
    tier.put(make_key(), make_chunk())
    for name in ("kvstitch:{}:h", "kvstitch:{not-a-key}:h", f"kvstitch:{{{make_key()}}}:h:h"):
        raw.set(name, b"not ours")
    raw.set(b"kvstitch:{\xff}:h", b"not ours")
    assert list(tier.keys()) == [make_key()]


def test_bad_url():
    with pytest.raises(TierError, match="bad Redis URL"):
        RedisTier("localhost:6379").start()


def test_nothing_is_retried():
    """By default redis-py would retry and turn one timeout into several."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tier = started(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1)
        with pytest.raises(TierTimeout):
            tier.read(make_key())
        tier.close()
        silent.setblocking(False)
        connections = [silent.accept()[0]]
        with pytest.raises(BlockingIOError):
            connections.append(silent.accept()[0])
        for connection in connections:
            connection.close()


def test_the_first_writer_stays(tier):
    """Two workers may compute a chunk with different low bits; readers must not get a mixture."""
    tier.put(make_key(), make_chunk(seed=0))
    tier.put(make_key(), make_chunk(seed=1))
    assert same_chunk(tier.read(make_key()), make_chunk(seed=0))
