"""Sound bytes under a wrong key: every stored thing says whose it is, and is refused elsewhere."""

import json
import os

import pytest
import redis

from kvstitch.kvstore import MemoryTier, RedisTier, SsdTier, TieredStore
from kvstitch.kvstore.format.chunk_header import VERSION
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path, extra_path
from tests.kvstore.chunks import chunk_file, make_chunk, make_key, same_chunk
from tests.kvstore.format.test_chunk_header import reseal
from tests.kvstore.test_store_extras import OTHER, SKETCH, holds

KEYS = [make_key(n) for n in range(2)]
CHUNKS = [make_chunk(seed=n) for n in range(2)]


def swap(root, path_of):
    """Exchange the files of the two keys."""
    one, two = (path_of(root, key) for key in KEYS)
    os.rename(one, root / "aside")
    os.rename(two, one)
    os.rename(root / "aside", two)


def stored(tier):
    """A started store that holds both chunks, and the sketches SKETCH and OTHER of them."""
    store = TieredStore([tier])
    store.start()
    for key, chunk, sketch in zip(KEYS, CHUNKS, (SKETCH, OTHER), strict=True):
        assert store.put(key, chunk) and store.flush(60)
        assert store.put_extra(key, "sketch", 1, sketch) and store.flush(60)
    return store


def refuses_both(store, tier):
    """Every copy is refused, counted and deleted; written again, it hits."""
    for key, chunk in zip(KEYS, CHUNKS, strict=True):
        outcome = store.read(key, chunk.spec)
        assert outcome.chunk is None and outcome.problems == ((tier, "refused"),)
        assert not store.contains([key])
    assert store.stats().tier(tier).count("read", "refused") == 2
    for key, chunk in zip(KEYS, CHUNKS, strict=True):
        assert store.put(key, chunk) and store.flush(60)
        assert same_chunk(store.read(key, chunk.spec).chunk, chunk)


@pytest.mark.parametrize("restart", [False, True])
def test_two_files_swapped_on_disk(tmp_path, restart):
    store = stored(SsdTier(tmp_path, 1 << 24))
    swap(tmp_path, chunk_path)
    if restart:
        store.close()
        store = TieredStore([SsdTier(tmp_path, 1 << 24)])
        store.start()
    refuses_both(store, "ssd")
    store.close()


@pytest.mark.parametrize("remembered", [False, True])
def test_blocks_of_swapped_files(tmp_path, remembered):
    store = stored(SsdTier(tmp_path, 1 << 24))
    if remembered:
        assert store.read_blocks(KEYS[0], {0: [0]}).blocks
    swap(tmp_path, chunk_path)
    outcome = store.read_blocks(KEYS[0], {0: [0], 2: [1]}, CHUNKS[0].spec)
    assert outcome.blocks is None and ("ssd", "refused") in outcome.problems
    assert not store.contains([KEYS[0]])
    store.close()


def test_swapped_sketches(tmp_path):
    store = stored(SsdTier(tmp_path, 1 << 24))
    swap(tmp_path, lambda root, key: extra_path(root, key, "sketch"))
    assert store.read_extra(KEYS[0], "sketch", 1) is None
    assert store.stats().tier("ssd").count("read_extra", "refused") == 1
    assert store.put_extra(KEYS[0], "sketch", 1, SKETCH)
    assert holds(store.read_extra(KEYS[0], "sketch", 1), SKETCH, "ssd")
    store.close()


def test_values_swapped_in_redis(redis_at):
    store = stored(RedisTier(redis_at.url, timeout_s=5))
    with redis.Redis.from_url(redis_at.url) as client:
        for part in ("h", "x", *map(str, range(CHUNKS[0].spec.layers))):
            one, two = (f"kvstitch:{{{key}}}:{part}" for key in KEYS)
            client.rename(one, "aside")
            client.rename(two, one)
            client.rename("aside", two)
    assert store.read_extra(KEYS[0], "sketch", 1) is None
    refuses_both(store, "redis")
    store.close()


def test_a_foreign_chunk_in_memory(redis_at):
    """Nothing but a mistake of ours puts it there; it is refused all the same."""
    tier = MemoryTier(1 << 24)
    with TieredStore([tier]) as store:
        tier.put(KEYS[0], CHUNKS[1].under(KEYS[1]))
        assert store.read(KEYS[0]).problems == (("memory", "refused"),)


def test_a_file_of_the_version_without_keys_is_replaced(tmp_path):
    header = CHUNKS[0].header_bytes
    old = reseal(header, f',"key":"{CHUNKS[0].header.key}"', "")
    old = reseal(old, f'"version":"{VERSION}"', '"version":"2"')
    assert "key" not in json.loads(old[8:])["__metadata__"]
    with TieredStore([SsdTier(tmp_path, 1 << 24)]) as store:
        for key, chunk in zip(KEYS, CHUNKS, strict=True):
            store.put(key, chunk)
            path = chunk_path(tmp_path, key)
            data = chunk_file(chunk)[len(header) :]
            path.write_bytes(old.ljust(len(header)) + data)
        refuses_both(store, "ssd")
