"""What rate counters promise, of one process and of Redis and a Redis Cluster; Redis away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.auth.quotas import MAX_BUCKETS, Limits, Rate, RateCounters
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.settings import load
from kvstitch_counters import redis_counters
from kvstitch_counters.redis_counters import RedisCounters
from tests.redis_cluster import redis_cluster
from tests.redis_server import RedisServer, redis_server
from tests.service.gateway.rig import Rig, running, until

SECRET = "ab" * 32
KEY_3 = Rate("requests_per_minute", "key", "red", "k1", 3)
TENANT_4 = Rate("requests_per_minute", "tenant", "red", "", 4)
TOKENS_100 = Rate("tokens_per_minute", "tenant", "red", "", 100)
Pass = Callable[[float], None]


def nearly(full_s: float, begun: float) -> Any:
    """A wait that was so long at `begun`: Redis's clock went on meanwhile."""
    return pytest.approx(full_s, abs=1e-3 + time.monotonic() - begun)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def shared(url: str) -> RedisCounters:
    return RedisCounters(url, lambda: SECRET, GatewayMetrics())


@pytest.fixture(params=["local", "redis"])
async def kind(
    request: pytest.FixtureRequest, server: RedisServer
) -> AsyncIterator[tuple[RateCounters, Pass]]:
    """Counters with full buckets, and how time passes for them."""
    if request.param == "local":
        now = [0.0]
        yield RateCounters(lambda: now[0]), lambda s: now.__setitem__(0, now[0] + s)
        return
    client = redis.Redis(port=server.port)
    client.flushall()

    def let_pass(seconds: float) -> None:
        for name in client.scan_iter():
            left = float(client.get(name)) - seconds * 1e6
            client.set(name, f"{left:.17g}", keepttl=True)

    counters = shared(server.url)
    await counters.start()
    yield counters, let_pass
    await counters.close()
    client.close()


async def test_a_quiet_minute_allows_a_burst_of_its_size_and_no_more(
    kind: tuple[RateCounters, Pass],
) -> None:
    counters, let_pass = kind
    begun = time.monotonic()
    for _ in range(3):
        assert await counters.admit([KEY_3], []) is None
    refused = await counters.admit([KEY_3], [])
    assert refused is not None and refused.rate == KEY_3
    assert refused.wait_s == nearly(20, begun)
    let_pass(refused.wait_s)
    assert await counters.admit([KEY_3], []) is None
    assert await counters.admit([KEY_3], []) is not None
    let_pass(1000)
    for _ in range(3):
        assert await counters.admit([KEY_3], []) is None
    assert await counters.admit([KEY_3], []) is not None


async def test_a_refused_request_counts_nowhere(kind: tuple[RateCounters, Pass]) -> None:
    counters, _ = kind
    begun = time.monotonic()
    for _ in range(3):
        assert await counters.admit([KEY_3, TENANT_4], []) is None
    for _ in range(5):
        refused = await counters.admit([KEY_3, TENANT_4], [])
        assert refused is not None and refused.rate == KEY_3
    other = Rate("requests_per_minute", "key", "red", "k2", 3)
    assert await counters.admit([other, TENANT_4], []) is None
    refused = await counters.admit([other, TENANT_4], [])
    assert refused is not None and refused.rate == TENANT_4
    assert refused.wait_s == nearly(15, begun)
    assert await counters.admit([Rate("requests_per_minute", "key", "blue", "k1", 3)], []) is None


async def test_tokens_may_overdraw_once_and_are_paid_back(
    kind: tuple[RateCounters, Pass],
) -> None:
    counters, let_pass = kind
    begun = time.monotonic()
    assert await counters.admit([], [TOKENS_100]) is None
    counters.spend([TOKENS_100], 99)
    assert await counters.admit([], [TOKENS_100]) is None
    for _ in range(150):
        counters.spend([TOKENS_100], 1)
    refused = await counters.admit([KEY_3], [TOKENS_100])
    assert refused is not None and refused.rate == TOKENS_100
    assert refused.wait_s == nearly(
        90, begun
    )  # 249 used of 100: credit for one more after 150 more
    let_pass(75)
    refused = await counters.admit([KEY_3], [TOKENS_100])
    assert refused is not None and refused.rate == TOKENS_100, "tokens, not the request, count"
    let_pass(15)
    for _ in range(3):
        assert await counters.admit([KEY_3], [TOKENS_100]) is None


async def test_another_limit_counts_from_the_next_request_on(
    kind: tuple[RateCounters, Pass],
) -> None:
    counters, _ = kind
    for _ in range(3):
        assert await counters.admit([KEY_3], []) is None
    raised = Rate("requests_per_minute", "key", "red", "k1", 6)
    refused = await counters.admit([raised], [])  # a minute is used, whatever the limit
    assert refused is not None and 0 < refused.wait_s <= 10


async def test_of_many_at_once_as_many_pass_as_the_limit_says(
    kind: tuple[RateCounters, Pass],
) -> None:
    counters, _ = kind
    rate = Rate("requests_per_minute", "key", "red", "many", 20)
    begun = time.monotonic()
    found = await asyncio.gather(*(counters.admit([rate], []) for _ in range(100)))
    passed = sum(refused is None for refused in found)
    assert 20 <= passed <= 20 + (time.monotonic() - begun) / 3


async def test_full_buckets_are_dropped(server: RedisServer) -> None:
    now = [0.0]
    counters = RateCounters(lambda: now[0])
    for number in range(MAX_BUCKETS):
        await counters.admit([Rate("requests_per_minute", "key", "t", str(number), 60)], [])
    now[0] = 2.0
    await counters.admit([KEY_3], [])
    assert len(counters._full_at) == 1


async def test_gateways_count_together(server: RedisServer) -> None:
    with redis.Redis(port=server.port) as client:
        client.flushall()
        one, other = shared(server.url), shared(server.url)
        await one.start()
        await other.start()
        passed = 0
        for counters in (one, other, one, other, one):
            passed += await counters.admit([TENANT_4], []) is None
        assert passed == 4
        one.spend([TOKENS_100], 500)
        for _ in range(100):
            if await other.admit([], [TOKENS_100]) is not None:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("what one spent is never told the other")
        # Nothing in Redis names a tenant or a key, and all of it goes by itself.
        names = client.keys()
        assert len(names) == 2 and not any(b"red" in n or b"k1" in n for n in names)
        assert all(0 < client.pttl(name) <= 300_000 for name in names)
        other_secret = RedisCounters(server.url, lambda: "cd" * 32, GatewayMetrics())
        assert other_secret._name(TENANT_4) != one._name(TENANT_4)
        await one.close()
        await other.close()


async def test_a_cluster_keeps_a_tenant_in_one_slot() -> None:
    with redis_cluster() as cluster:
        counters = shared(cluster.url)
        await counters.start()
        for tenant in ("", "red", "blue", "green"):
            rates = [
                Rate("requests_per_minute", "key", tenant, "k1", 2),
                Rate("requests_per_minute", "tenant", tenant, "", 9),
            ]
            tokens = [Rate("tokens_per_minute", "key", tenant, "k1", 10)]
            assert await counters.admit(rates, tokens) is None
            assert await counters.admit(rates, tokens) is None
            refused = await counters.admit(rates, tokens)
            assert refused is not None and refused.rate == rates[0]
        assert counters._metrics.quota_checks.labels("alone")._value.get() == 0
        stored = sum(len(cluster.client(port).keys()) for port in cluster.masters())
        assert stored == 8
        await counters.close()


@pytest.mark.parametrize("how", ["stopped", "frozen", "refusing"])
async def test_redis_away_means_counting_alone_until_it_is_back(
    how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_counters, "RETRY_S", 0.2)
    rate = Rate("requests_per_minute", "key", "red", "k1", 4)
    with redis_server() as server, redis.Redis(port=server.port) as client:
        counters = shared(server.url)
        await counters.start()
        assert await counters.admit([rate], []) is None
        counted = counters._metrics.quota_checks.labels("alone")._value.get
        assert counted() == 0
        match how:
            case "stopped":
                server.stop()
            case "frozen":
                server.freeze()
            case "refusing":
                client.config_set("requirepass", "secret")
                await counters._client.connection_pool.disconnect()
        caplog.set_level(logging.WARNING)
        passed = [await counters.admit([rate], []) is None for _ in range(5)]
        assert passed == [True] * 3 + [False] * 2, "what Redis admitted counts here, too"
        assert counted() == 5
        counters.spend([TOKENS_100], 1000)
        assert await counters.admit([], [TOKENS_100]) is not None
        assert len([r for r in caplog.records if "counts by itself" in r.getMessage()]) == 1
        match how:
            case "stopped":
                server.start()
            case "frozen":
                server.thaw()
            case "refusing":
                client.config_set("requirepass", "")
        other = Rate("requests_per_minute", "key", "red", "k2", 600)
        seen = counters._metrics.quota_checks.labels("shared")._value.get
        before = seen()
        for _ in range(200):
            await counters.admit([other], [])
            if seen() > before:
                break
            await asyncio.sleep(0.05)
        assert seen() > before, "Redis is never asked again"
        assert any("counts again" in r.getMessage() for r in caplog.records)
        await counters.close()


async def test_an_event_loop_is_not_held_up_by_a_redis_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with redis_server() as server:
        counters = shared(server.url)
        await counters.start()
        await counters.admit([KEY_3], [])
        server.freeze()
        turns = 0

        async def work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        working = asyncio.create_task(work())
        found = await asyncio.gather(*(counters.admit([KEY_3], []) for _ in range(20)))
        working.cancel()
        assert sum(refused is None for refused in found) == 2
        assert turns > 1
        server.thaw()
        await counters.close()


@pytest.mark.parametrize(
    "url", ["redis://host:port/0", "redis+cluster://a:1/3", "redis+cluster://:1"]
)
async def test_a_bad_address_says_which_setting_to_mend(url: str) -> None:
    with pytest.raises(InvalidSetting, match="KVSTITCH_COUNTERS_URL"):
        await shared(url).start()


def test_counting_together_needs_one_secret(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"counters_url.*set database or tenant_secret"):
        load(counters_url="redis://127.0.0.1:6379/0")
    with pytest.raises(InvalidSetting, match=r"must start with redis://"):
        load(counters_url="127.0.0.1:6379", tenant_secret=SECRET)


def test_two_gateways_let_through_what_one_would(
    folder: Path, server: RedisServer, postgresql_url: str, tmp_path: Path
) -> None:
    """Over HTTP: requests of one key at two gateways in turns, and tokens that one has spent."""
    from kvstitch.service.gateway.databases import key_store

    common: dict[str, Any] = {"database": postgresql_url, "counters_url": server.url}
    with key_store(load(database=postgresql_url)) as keys:
        key, _ = keys.create(tenant="red", limits=Limits(requests_per_minute=5))
        other, _ = keys.create(tenant="blue", limits=Limits(tokens_per_minute=5))
    with ExitStack() as stack:
        rigs: list[Rig] = []
        for name in "ab":
            rigs.append(stack.enter_context(running(folder, tmp_path / name, **common)))
            rigs[-1].http.headers["Authorization"] = f"Bearer {key}"
        body = {"query": "Oslo"}
        codes = [rigs[n % 2].http.post("/v1/search", json=body).status_code for n in range(8)]
        assert codes == [200] * 5 + [429] * 3
        refused = rigs[0].http.post("/v1/search", json=body)
        assert "quota_exceeded" in refused.text and "Retry-After" in refused.headers
        for rig in rigs:
            rig.http.headers["Authorization"] = f"Bearer {other}"
        asked = rigs[0].http.post("/v1/rag/generate", json={"question": "Oslo?", "top_k": 0})
        assert asked.status_code == 200
        until(
            lambda: rigs[1].http.post("/v1/search", json=body).status_code == 429,
            "the other gateway knows",
        )
