"""A tier that somebody else holds: nothing is raised and nothing waits, it is counted by name,
another tier answers, and it is used again when it is let go. docs/operations.md has the table."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import redis

from kvstitch.kvstore import MemoryTier, RedisTier, SsdTier, TieredStore
from kvstitch.kvstore.tier_caller import BreakerSettings
from kvstitch.kvstore.tiers.base import Tier
from tests.data_folder import read_only
from tests.kvstore.chunks import make_chunk, make_key, same_chunk
from tests.kvstore.fake_tier import let_cool_down
from tests.redis_server import RedisServer, redis_server

WITHIN_S = 20.0
Hold = Callable[[], AbstractContextManager[None]]


@contextmanager
def small_files() -> Iterator[None]:
    """A quota, or a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def replica(server: RedisServer) -> Iterator[None]:
    """As after a failover: it takes no writes."""
    with redis.Redis(port=server.port) as client:
        client.config_set("replica-serve-stale-data", "yes")
        client.replicaof("127.0.0.1", 9)
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    """Its memory is used up, and nothing may be evicted."""
    with redis.Redis(port=server.port) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        try:
            yield
        finally:
            client.config_set("maxmemory", "0")


@pytest.fixture(params=["ssd full", "ssd read-only", "redis read-only", "redis full"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Tier, Hold]]:
    folder = tmp_path / "kv"
    if request.param.startswith("ssd"):
        hold: Hold = small_files if request.param == "ssd full" else lambda: read_only(folder)
        yield SsdTier(folder, 1 << 24), hold
        return
    with redis_server() as server:
        fault = replica if request.param == "redis read-only" else full
        yield RedisTier(server.url, timeout_s=5), lambda: fault(server)


def test_a_tier_that_somebody_else_holds(held: tuple[Tier, Hold]) -> None:
    tier, hold = held
    breaker = BreakerSettings(failures=2, cooldown_s=600)
    with TieredStore([MemoryTier(1 << 24), tier], breaker=breaker) as store:
        assert store.put(make_key(0), make_chunk(seed=0)) and store.flush(60)
        with hold():
            started = time.monotonic()
            for number in range(1, 5):
                chunk = make_chunk(seed=number)
                assert store.put(make_key(number), chunk) and store.flush(60)
                read = store.read(make_key(number))
                assert read.tier == "memory" and same_chunk(read.chunk, chunk)
            assert time.monotonic() - started < WITHIN_S
            told = store.stats().tier(tier.name)
            failed = ("rejected", "unavailable", "error", "full", "timeout")
            assert sum(told.count("write", kind) for kind in failed) >= 1, told
            assert store.delete([make_key(1)]) is not None
        let_cool_down(store)
        late = make_chunk(seed=9)
        assert store.put(make_key(9), late) and store.flush(60)
        assert tier.contains([make_key(9)]) == {make_key(9)}, "it is used again"
        assert not tier.contains([make_key(1)])


def test_a_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored then is read, evicted in the order of its use, and found after a restart."""
    now = time.time
    with TieredStore([SsdTier(tmp_path, 1 << 24)]) as store:
        assert store.put(make_key(0), make_chunk(seed=0))
        monkeypatch.setattr(time, "time", lambda: now() - 86_400.0)
        assert store.put(make_key(1), make_chunk(seed=1)) and store.flush(60)
    with TieredStore([SsdTier(tmp_path, 1 << 24)]) as store:
        for number in (0, 1):
            assert same_chunk(store.read(make_key(number)).chunk, make_chunk(seed=number))
