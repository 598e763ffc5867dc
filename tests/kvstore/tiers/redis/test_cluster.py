"""Against a real Redis Cluster: slots that move, servers that die, are slow, or lag behind."""

import threading
import time

import pytest
import torch

from kvstitch.kvstore import RedisTier, TieredStore, TierError, TierTimeout, TierUnavailable
from kvstitch.kvstore.format.chunk import selection_ranges
from kvstitch.kvstore.tier_caller import BreakerSettings
from tests.kvstore.chunks import gathered, make_chunk, make_key, make_spec, same_chunk
from tests.redis_cluster import NODE_TIMEOUT_MS
from tests.redis_server import redis_server

KEY = make_key()
EXTRA = torch.arange(50, dtype=torch.uint8)
TTL = 100


def slot_of(key):
    from redis.crc import key_slot

    return int(key_slot(key.encode()))


@pytest.fixture
def tier(cluster):
    tier = RedisTier(cluster.url, timeout_s=5, ttl_s=TTL)
    tier.start()
    yield tier
    tier.close()


@pytest.fixture
def move(cluster, tier):
    """KEY's slot and chunk, and the servers it will move between."""
    chunk = make_chunk()
    tier.put(KEY, chunk)
    slot = slot_of(KEY)
    source = cluster.holder(slot)
    return chunk, (slot, source, next(port for port in cluster.masters() if port != source))


def names_in(cluster):
    found = []
    for port in cluster.masters():
        with cluster.client(port) as client:
            found += client.keys()
    return found


def test_chunks_are_spread_and_each_is_on_one_server(cluster, tier):
    chunks = {make_key(n): make_chunk(seed=n) for n in range(200, 240)}
    for key, chunk in chunks.items():
        tier.put(key, chunk)
    held = {}
    for port in cluster.masters():
        with cluster.client(port) as client:
            held[port] = {
                name.split(b"{")[1].split(b"}")[0].decode() for name in client.scan_iter()
            }
            assert client.dbsize() == 4 * len(held[port])
    assert all(held.values()) and sum(map(len, held.values())) == 40
    assert set(tier.keys()) == tier.contains(chunks) == set(chunks)
    assert all(same_chunk(tier.read(key), chunk) for key, chunk in chunks.items())
    usage = tier.usage()
    assert (usage.servers, usage.servers_down) == (3, 0)
    assert usage.capacity_bytes == 3 * 64 << 20
    assert tier.delete(chunks) == 40 and not names_in(cluster)


def test_a_slot_that_is_moving_is_out_of_reach_and_nothing_of_it_is_lost(cluster, tier, move):
    """Layer 1 and the header are at the target already."""
    chunk, (slot, source, target) = move
    assert tier.put_extra(KEY, "sketch", EXTRA)
    cluster.begin_move(slot, source, target)
    cluster.move_values(source, target, [f"kvstitch:{{{KEY}}}:{part}" for part in ("1", "h")])
    ranges = selection_ranges({0: (0,), 1: (0, 1)}, chunk.spec)
    for call in (
        lambda: tier.read(KEY),
        lambda: tier.read_header(KEY),
        lambda: tier.read_ranges(KEY, chunk.header, ranges),
        lambda: tier.put(KEY, make_chunk(seed=1)),
        lambda: tier.put_extra(KEY, "other", EXTRA),
    ):
        with pytest.raises(TierUnavailable, match="moving"):
            call()
    assert not tier.contains([KEY, make_key(1)])
    cluster.end_move(slot, source, target)
    assert same_chunk(tier.read(KEY), chunk) and tier.contains([KEY]) == {KEY}
    assert torch.equal(tier.read_extra(KEY, "sketch"), EXTRA)


def test_a_deletion_in_a_slot_that_is_moving_is_owed(cluster, tier, move):
    _, (slot, source, target) = move
    cluster.begin_move(slot, source, target)
    cluster.move_values(source, target, [f"kvstitch:{{{KEY}}}:{part}" for part in ("1", "h")])
    with pytest.raises(TierUnavailable, match="moving"):
        tier.delete([KEY, make_key(1)])
    cluster.end_move(slot, source, target)
    assert tier.delete([KEY]) == 1 and not names_in(cluster)


@pytest.mark.parametrize("work", ["read", "contains", "delete", "put", "read_ranges"])
def test_a_slot_that_has_moved_is_followed_once(cluster, tier, move, work):
    chunk, (slot, source, target) = move
    cluster.begin_move(slot, source, target)
    cluster.end_move(slot, source, target)
    with cluster.client(source) as client:
        client.config_resetstat()
        if work == "read":
            assert same_chunk(tier.read(KEY), chunk)
        elif work == "contains":
            assert tier.contains([KEY]) == {KEY}
        elif work == "delete":
            assert tier.delete([KEY, make_key(1)]) == 1 and not names_in(cluster)
        elif work == "put":
            tier.put(KEY, make_chunk(seed=1))
        else:
            got = tier.read_ranges(KEY, chunk.header, selection_ranges({1: (1,)}, chunk.spec))
            assert torch.equal(got, gathered(chunk, {1: (1,)}))
        refused = client.info("errorstats")["errorstat_MOVED"]["count"]
        assert work == "delete" or same_chunk(tier.read(KEY), chunk)
        assert client.info("errorstats")["errorstat_MOVED"]["count"] == refused


@pytest.mark.slow
def test_traffic_while_slots_move_to_and_fro(cluster):
    """Reads give the chunk or miss it: none is lost for good, wrong or late, and all is well."""
    spec = make_spec("int8", layers=6, tokens=300)
    chunks = {make_key(n): make_chunk(spec, seed=n) for n in range(12)}
    news = {make_key(n): make_chunk(spec, seed=n) for n in range(100, 120)}
    wrong: list[str] = []
    missed: list[object] = []
    over = threading.Event()
    with TieredStore([RedisTier(cluster.url, timeout_s=10)]) as store:
        for key, chunk in chunks.items():
            store.put(key, chunk)
        assert store.flush(60)

        def read() -> None:
            picked = {0: (0, 2), 3: (1,), 5: (4,)}
            while not over.is_set():
                for key, chunk in chunks.items():
                    outcome = store.read(key, chunk.spec)
                    if outcome.chunk is None:
                        missed.append(outcome.problems)
                    elif not same_chunk(outcome.chunk, chunk):
                        wrong.append(f"read {key}")
                    if store.read_blocks(key, picked, chunk.spec).bad:
                        wrong.append(f"blocks {key}")

        def write() -> None:
            for key, chunk in news.items():
                store.put(key, chunk)
                time.sleep(0.01)

        threads = [threading.Thread(target=work) for work in (read, read, write)]
        for thread in threads:
            thread.start()
        try:
            for key in [*chunks, *list(news)[::4]]:
                slot = slot_of(key)
                source = cluster.holder(slot)
                target = next(port for port in cluster.masters() if port != source)
                cluster.begin_move(slot, source, target)
                time.sleep(0.02)
                cluster.end_move(slot, source, target)
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        assert not wrong and set(missed) <= {(("redis", "unavailable"),)} and store.flush(60)
        assert all(same_chunk(store.read(key).chunk, chunk) for key, chunk in chunks.items())
        for key, chunk in news.items():
            found = store.read(key)
            assert found.problems == () and (not found.chunk or same_chunk(found.chunk, chunk))
        counted = store.stats().tier("redis")
        assert counted.healthy
        bad = {"corrupt", "refused", "timeout", "error", "rejected"}
        assert not {pair: n for pair, n in counted.ops.items() if n and pair[1] in bad}


def test_a_frozen_server_costs_its_own_chunks_and_no_others(cluster):
    chunks = {make_key(n): make_chunk(seed=n) for n in range(20)}
    frozen = cluster.holder(slot_of(KEY))
    lost = {key for key in chunks if cluster.holder(slot_of(key)) == frozen}
    breaker = BreakerSettings(cooldown_s=600)
    with TieredStore([RedisTier(cluster.url, timeout_s=2)], breaker=breaker) as store:
        for key, chunk in chunks.items():
            store.put(key, chunk)
        assert store.flush(60)
        assert store.contains(chunks) == set(chunks)
        cluster.replace_after(600_000)
        cluster.servers[frozen].freeze()
        try:
            assert store.read(KEY).problems == (("redis", "timeout"),)
            assert store.read(KEY).problems == (("redis", "unavailable"),)
            assert store.contains(chunks) == set(chunks) - lost
            assert all(store.read(key).chunk is not None for key in set(chunks) - lost)
            counted = store.stats().tier("redis")
            assert counted.healthy and counted.usage.servers_down == 1
            assert counted.count("contains", "unavailable") == 1
        finally:
            cluster.servers[frozen].thaw()
            cluster.replace_after(NODE_TIMEOUT_MS)
            cluster.wait_until_whole()


def test_a_killed_master_is_replaced_by_its_replica(cluster):
    """Its chunks are misses for some seconds, then come from the replica; what was deleted stays
    deleted."""
    chunks = {make_key(n): make_chunk(seed=n) for n in range(20)}
    killed = cluster.holder(slot_of(KEY))
    of_killed = [key for key in chunks if cluster.holder(slot_of(key)) == killed]
    deleted = of_killed[-1]
    assert deleted != KEY
    breaker = BreakerSettings(cooldown_s=0.2)
    with TieredStore([RedisTier(cluster.url, timeout_s=5)], breaker=breaker) as store:
        for key, chunk in chunks.items():
            store.put(key, chunk)
        assert store.flush(60)
        assert store.delete([deleted]) == {"redis": 1}
        cluster.replace_after(3000)
        cluster.servers[killed].stop()
        try:
            seen = []
            give_up_at = time.monotonic() + 120
            while time.monotonic() < give_up_at:
                outcome = store.read(KEY)
                seen.append(outcome.problems)
                if outcome.chunk is not None:
                    break
                for key in set(chunks) - set(of_killed):
                    assert same_chunk(store.read(key).chunk, chunks[key])
                time.sleep(0.05)
            assert same_chunk(outcome.chunk, chunks[KEY]) and seen[0] == (("redis", "unavailable"),)
            assert store.read(deleted).chunk is None
            expected = set(chunks) - {deleted}
            assert store.contains(chunks) == expected
            assert all(same_chunk(store.read(key).chunk, chunks[key]) for key in expected)
            assert store.stats().tier("redis").healthy
        finally:
            cluster.replace_after(NODE_TIMEOUT_MS)
            cluster.servers[killed].start()
            cluster.wait_until_whole()


def test_a_deletion_counts_only_when_the_replicas_have_it(cluster, tier):
    """Otherwise a replica that takes over would bring the chunk back."""
    tier.put(KEY, make_chunk())
    behind = cluster.replica_of(cluster.holder(slot_of(KEY)))
    cluster.servers[behind].freeze()
    try:
        with pytest.raises(TierTimeout, match="0 of 1 replicas"):
            tier.delete([KEY])
        assert tier.read(KEY) is None, "the server itself is well"
    finally:
        cluster.servers[behind].thaw()
        cluster.wait_until_whole()
    give_up_at = time.monotonic() + 120
    while True:
        try:
            assert tier.delete([KEY]) == 0
            break
        except TierTimeout:
            assert time.monotonic() < give_up_at


def test_the_address_of_one_server_of_a_cluster_is_refused(cluster):
    one = RedisTier(f"redis://127.0.0.1:{min(cluster.masters())}", timeout_s=30)
    one.start()
    with pytest.raises(TierError, match="redis\\+cluster://"):
        for n in range(20):
            one.read(make_key(n))
    one.close()


def test_one_server_that_is_no_cluster():
    with redis_server() as server:
        tier = RedisTier(f"redis+cluster://127.0.0.1:{server.port}", timeout_s=30)
        tier.start()
        with pytest.raises(TierUnavailable, match="Cluster mode is not enabled"):
            tier.read(KEY)
        tier.close()


def test_a_cluster_that_is_away_delays_no_start():
    tier = RedisTier("redis+cluster://127.0.0.1:1,127.0.0.1:2", timeout_s=0.2)
    tier.start()
    for call in (lambda: tier.read(KEY), lambda: tier.contains([KEY]), tier.usage, tier.keys):
        with pytest.raises(TierUnavailable):
            call()
    tier.close()
    with pytest.raises(TierUnavailable, match="not started"):
        tier.read(KEY)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+cluster://", "bad address"),
        ("redis+cluster://host:port", "bad address"),
        ("redis+cluster://a:1,,b:2", "bad address"),
        ("redis+cluster://a:1,b:2/3", "one database"),
    ],
)
def test_bad_addresses(url, message):
    with pytest.raises(TierError, match=message):
        RedisTier(url).start()


def test_settings_in_the_address_hold_for_every_server(cluster):
    for port in cluster.servers:
        with cluster.client(port) as client:
            client.acl_setuser(
                "kv", enabled=True, passwords=["+s,e@c"], keys=["*"], commands=["+@all"]
            )
    url = cluster.url.replace("://", "://kv:s%2Ce%40c@") + "/?client_name=kvstitch"
    tier = RedisTier(url, timeout_s=30)
    tier.start()
    for n in range(200, 220):  # whose slots no other test moves
        tier.put(make_key(n), make_chunk(seed=n))
        assert same_chunk(tier.read(make_key(n)), make_chunk(seed=n))
    for port in cluster.masters():
        with cluster.client(port) as client:
            ours = [one for one in client.client_list() if one["user"] == "kv"]
            assert {one["name"] for one in ours} == {"kvstitch"}
    tier.close()
    for port in cluster.servers:
        with cluster.client(port) as client:
            client.acl_deluser("kv")


def test_servers_are_found_from_any_one(cluster):
    tier = RedisTier(f"redis+cluster://127.0.0.1:{max(cluster.servers)}", timeout_s=30)
    tier.start()
    assert tier.usage().servers == 3
    tier.close()
