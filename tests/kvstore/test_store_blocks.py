"""Reads of blocks through the store, with real files and Redis; counted bytes are moved bytes."""

import os

import pytest
import redis

from kvstitch.kvstore import MemoryTier, RedisTier, SsdTier, TieredStore
from kvstitch.kvstore.format.chunk import block_selection, selection_ranges
from tests.kvstore.chunks import make_chunk, make_key
from tests.kvstore.fake_tier import FakeTier
from tests.kvstore.places import EVERYTHING, KEY, PICKED, check, spec_of


@pytest.mark.parametrize(
    ("codec", "picked"),
    [("raw", PICKED), ("int8", EVERYTHING), ("int4", PICKED), ("int2", {1: [4]}), ("raw", {1: []})],
)
def test_every_tier_gives_the_blocks(place, codec, picked):
    chunk = make_chunk(spec_of(codec))
    with TieredStore([place.tier]) as store:
        store.put(KEY, chunk)
        assert store.flush(60)
        outcome = store.read_blocks(KEY, picked, chunk.spec)
        check(outcome, chunk, picked)
        assert (outcome.tier, outcome.problems, outcome.bad) == (place.kind, (), ())
        assert outcome.seconds > 0
        count = sum(map(len, picked.values()))
        stats = store.stats().tier(place.kind)
        assert (stats.count("block", "ok"), stats.count("block", "corrupt")) == (count, 0)
        assert stats.count("read_blocks", "hit") == 1


def test_a_miss():
    with TieredStore([FakeTier()]) as store:
        outcome = store.read_blocks(KEY, PICKED)
        assert outcome.blocks is None and outcome.tier is None
        assert outcome.missing == {0: (0, 3), 2: (1, 2, 4)} and outcome.loaded == {}


def test_the_header_is_read_once(near):
    chunk = make_chunk(spec_of())
    near.plant(KEY, chunk)
    with TieredStore([near]) as store:
        first = store.read_blocks(KEY, PICKED)
        second = store.read_blocks(KEY, {1: [0]})
        assert (near.calls["read_header"], near.calls["read_ranges"]) == (1, 2)
        assert first.blocks is not None and second.blocks is not None
        assert first.loaded == {"near": chunk.header.data_start + first.blocks.nbytes}
        assert second.loaded == {"near": second.blocks.nbytes}
        store.delete([KEY])
        store.read_blocks(KEY, PICKED)
        assert near.calls["read_header"] == 2, "a deleted chunk's header is forgotten"


def test_headers_are_kept_for_the_last_256_chunks(near):
    chunk = make_chunk(spec_of(layers=1))
    keys = [make_key(n) for n in range(258)]
    with TieredStore([near]) as store:
        for key in keys:
            near.plant(key, chunk)
            store.read_blocks(key, {0: [0]})
            store.read_blocks(keys[0], {0: [0]})
        assert near.calls["read_header"] == 258
        for key, again in ((keys[0], 0), (keys[257], 0), (keys[1], 1), (keys[2], 2)):
            store.read_blocks(key, {0: [0]})
            assert near.calls["read_header"] == 258 + again


def test_nothing_is_promoted(near):
    near.plant(KEY, make_chunk(spec_of()))
    with TieredStore([MemoryTier(1 << 24), near]) as store:
        assert store.read_blocks(KEY, EVERYTHING).tier == "near"
        assert store.flush(60) and store.locate([KEY]) == {KEY: "near"}


def test_bytes_read_from_files(tmp_path, monkeypatch):
    moved = []
    preadv = os.preadv

    def counting(*arguments):
        moved.append(preadv(*arguments))
        return moved[-1]

    chunk = make_chunk(spec_of("int4"))
    with TieredStore([SsdTier(tmp_path, 1 << 24)]) as store:
        store.put(KEY, chunk)
        monkeypatch.setattr(os, "preadv", counting)
        outcomes = [store.read_blocks(KEY, picked) for picked in (PICKED, PICKED, {1: [4]})]
        assert sum(moved) == sum(outcome.nbytes for outcome in outcomes)
        assert sum(moved) == store.stats().tier("ssd").bytes["read_blocks"]
        assert outcomes[0].nbytes - outcomes[1].nbytes == chunk.header.data_start
        data = [o.blocks.nbytes for o in outcomes if o.blocks is not None]
        assert data[1] == outcomes[1].nbytes < chunk.nbytes / 2
        # A run of neighbours is one read: six tensors, two or two runs each, and the last block.
        assert len(moved) == 1 + 2 * (6 * 2 + 6 * 2) + 6


def test_bytes_sent_by_redis(redis_at):
    chunk = make_chunk(spec_of("int8"))
    with TieredStore([RedisTier(redis_at.url, timeout_s=5)]) as store:
        store.put(KEY, chunk)
        assert store.flush(60)
        with redis.Redis.from_url(redis_at.url) as client:

            def sent():
                return client.info("stats")["total_net_output_bytes"]

            before = sent()
            own = sent() - before  # what asking costs
            before = sent()
            outcome = store.read_blocks(KEY, PICKED)
            received = sent() - before - own
        header = chunk.header.data_start
        replies = [header] + [
            one.nbytes for one in selection_ranges(block_selection(PICKED), chunk.spec)
        ]
        framing = sum(len(f"${size}\r\n") + len("\r\n") for size in replies)
        assert outcome.nbytes == sum(replies) == store.stats().tier("redis").bytes["read_blocks"]
        # The length of INFO's own reply varies by a digit or two.
        assert abs(received - sum(replies) - framing) <= 200


def test_bytes_copied_from_memory():
    chunk = make_chunk(spec_of())
    with TieredStore([MemoryTier(1 << 24)]) as store:
        store.put(KEY, chunk)
        outcome = store.read_blocks(KEY, PICKED)
        assert outcome.blocks is not None
        assert (
            outcome.nbytes == outcome.blocks.nbytes == 5 * 64 * 2 * 2 * 8 * 2 - 20 * 2 * 2 * 8 * 2
        )
        assert store.stats().tier("memory").bytes["read_blocks"] == outcome.nbytes
