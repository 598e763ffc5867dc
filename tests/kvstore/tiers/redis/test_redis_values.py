"""How a Redis tier handles replies: of a misbehaving server on a socket, and of a real one."""

import threading
import time

import pytest
import redis

from kvstitch.kvstore import (
    ChunkCorrupt,
    RedisTier,
    TieredStore,
    TierError,
    TierTimeout,
    TierUnavailable,
)
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk
from tests.kvstore.tiers.redis.fake_redis import Script, bulk, serving

CHUNK = make_chunk(make_spec(tokens=200)).under(make_key())
HEADER = bulk(CHUNK.header_bytes)
LAYERS = [bulk(CHUNK.layer_bytes(layer).numpy().tobytes()) for layer in range(3)]
GOOD = b"".join(LAYERS)


def tier_at(url, **options):
    tier = RedisTier(f"{url}?protocol=2", **{"timeout_s": 30, **options})
    tier.start()
    return tier


@pytest.mark.parametrize(("piece", "pause"), [(1 << 20, 0), (1000, 0), (7, 0), (3000, 0.002)])
def test_fragments(piece, pause):
    script = Script(HEADER, GOOD, HEADER, GOOD, piece=piece, pause=pause)
    with serving(script) as url:
        tier = tier_at(url)
        assert same_chunk(tier.read(make_key()), CHUNK)
        assert same_chunk(tier.read(make_key()), CHUNK)
        assert script.accepted == 1, "one connection, used again"
        tier.close()


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([b"-LOADING Redis is loading the dataset in memory\r\n"], TierUnavailable),
        ([b"-MASTERDOWN Link with MASTER is down\r\n"], TierUnavailable),
        ([b"-NOAUTH Authentication required.\r\n"], TierUnavailable),
        ([b"-NOPERM no\r\n"], TierError),
        ([b"hello\r\n"], TierUnavailable),
        ([b""], TierUnavailable),
        ([], TierTimeout),
        ([HEADER[:100], b""], TierTimeout),
        ([HEADER, GOOD[:5000]], TierTimeout),
        ([HEADER, LAYERS[0] + b"-LOADING x\r\n"], TierUnavailable),
        ([HEADER, LAYERS[0] + LAYERS[1] + LAYERS[2][:-2] + b"xx"], TierUnavailable),
        ([HEADER, LAYERS[0] + bulk(b"x" * 10) + LAYERS[2]], ChunkCorrupt),
        ([HEADER, LAYERS[0] + bulk(b"x" * (2 << 20)) + LAYERS[2]], ChunkCorrupt),
        ([HEADER, LAYERS[0] + bulk(b"") + LAYERS[2]], ChunkCorrupt),
        ([HEADER, b"$" + b"9" * 30 + b"\r\n"], TierUnavailable),
    ],
)
def test_a_bad_reply_costs_its_connection_and_nothing_else(answers, error):
    """The next read uses another connection, whatever is left in the first one."""
    script = Script(*answers)
    with serving(script) as url:
        # What is waited for in vain, and the next answer, which must come in time.
        tier = tier_at(url, timeout_s=2 if error is TierTimeout else 30)
        with pytest.raises(error):
            tier.read(make_key())
        script.answers[:] = [HEADER, GOOD]
        assert same_chunk(tier.read(make_key()), CHUNK) and script.accepted == 2
        tier.close()


def test_a_bad_header_in_a_sound_reply_costs_nothing():
    script = Script(bulk(CHUNK.header_bytes[:-8]), bulk(None), HEADER, GOOD)
    with serving(script) as url:
        tier = tier_at(url)
        with pytest.raises(ChunkCorrupt):
            tier.read(make_key())
        assert tier.read(make_key()) is None
        assert same_chunk(tier.read(make_key()), CHUNK) and script.accepted == 1
        tier.close()


def test_bytes_that_nobody_asked_for():
    """Unexpected bytes are found before the connection is used again."""
    script = Script(HEADER, GOOD + LAYERS[0], HEADER, GOOD)
    with serving(script) as url:
        tier = tier_at(url)
        assert same_chunk(tier.read(make_key()), CHUNK)
        assert script.sent.acquire(timeout=60), "the rest has arrived, too"
        assert script.sent.acquire(timeout=60)
        assert same_chunk(tier.read(make_key()), CHUNK) and script.accepted == 2
        tier.close()


def test_what_a_listener_raises_ends_the_read_and_the_connection():
    script = Script(HEADER, GOOD, HEADER, GOOD)
    with serving(script) as url:
        tier = tier_at(url)

        def refuse(header, data, done):
            raise KeyError(done)

        with pytest.raises(KeyError):
            tier.read(make_key(), refuse)
        assert same_chunk(tier.read(make_key()), CHUNK) and script.accepted == 2
        tier.close()


def test_the_server_s_own_rest_belongs_to_nobody():
    """A store finds a bad layer in the middle of a read, deletes the copy and continues."""
    bad = bytearray(GOOD)
    bad[len(LAYERS[0]) + 100] ^= 1
    script = Script(HEADER, bytes(bad))
    with serving(script) as url, TieredStore([tier_at(url)]) as store:
        outcome = store.read(make_key(), CHUNK.spec)
        assert outcome.chunk is None and outcome.problems[0] == ("redis", "corrupt")


def test_closed_means_closed(redis_at):
    tier = RedisTier(redis_at.url, timeout_s=5)
    tier.start()
    tier.put(make_key(), CHUNK)
    tier.read(make_key())
    with redis.Redis.from_url(redis_at.url) as client:
        before = len(client.client_list())
        tier.close()
        give_up_at = time.monotonic() + 120
        while len(client.client_list()) > before - 1 and time.monotonic() < give_up_at:
            time.sleep(0.01)
        assert len(client.client_list()) == before - 1, "the connection of both"
    with pytest.raises(TierUnavailable, match="not started"):
        tier.read(make_key())


def test_settings_of_the_url_hold_for_every_connection(redis_at):
    with redis.Redis.from_url(redis_at.url) as client:
        client.acl_setuser(
            "kv", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"]
        )
        url = redis_at.url.replace("://", "://kv:secret@").replace("/0", "/3")
        tier = RedisTier(f"{url}?client_name=kvstitch", timeout_s=5)
        tier.start()
        tier.put(make_key(), CHUNK)
        assert same_chunk(tier.read(make_key()), CHUNK)
        ours = [one for one in client.client_list() if one["user"] == "kv"]
        assert len(ours) == 1
        assert {(one["db"], one["name"]) for one in ours} == {("3", "kvstitch")}
        tier.close()
        wrong = RedisTier(url.replace("secret", "wrong"), timeout_s=5)
        wrong.start()
        with pytest.raises(TierUnavailable):
            wrong.read(make_key())
        wrong.close()
        client.acl_deluser("kv")


def test_idle_connections_are_few(redis_at):
    tier = RedisTier(redis_at.url, timeout_s=10)
    tier.start()
    tier.put(make_key(), CHUNK)
    barrier = threading.Barrier(12)

    def waiting(header, data, done):
        if done == header.nbytes:
            barrier.wait(120)

    threads = [threading.Thread(target=tier.read, args=(make_key(), waiting)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    with redis.Redis.from_url(redis_at.url) as client:
        give_up_at = time.monotonic() + 120
        while len(client.client_list()) > 8 + 1 and time.monotonic() < give_up_at:
            time.sleep(0.01)
        assert len(client.client_list()) == 8 + 1, "those kept, and this one"
    assert same_chunk(tier.read(make_key()), CHUNK)
    tier.close()
