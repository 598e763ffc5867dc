"""Sparse reads through the store, with real files and a real Redis."""

import os
import random
import threading
import time

import pytest
import redis
import torch

from kvstore import (
    BadBlock,
    ChunkSpecError,
    MemoryTier,
    RedisTier,
    SsdTier,
    TieredStore,
    TierError,
    TierTimeout,
)
from kvstore.codecs import codec_names
from kvstore.tiers.breaker import BreakerSettings
from kvstore.tiers.fake import FakeTier
from kvstore.tiers.scan import chunk_path
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk
from tests.redis_server import redis_server

KEY = make_key()
PICKED = {0: [0, 3], 2: [1, 2, 4]}
EVERYTHING = {layer: range(5) for layer in range(3)}


def spec_of(codec="raw", **fields):
    return make_spec(codec, **{"tokens": 300, **fields})


class Place:
    """One real tier with a way to change the bytes that it holds of chunk KEY."""

    def __init__(self, kind, tmp_path, url):
        self.kind = kind
        self._path = chunk_path(tmp_path, KEY)
        self._url = url
        if kind == "memory":
            self.tier = MemoryTier(1 << 24)
        elif kind == "ssd":
            self.tier = SsdTier(tmp_path, 1 << 24, fsync=False)
        else:
            self.tier = RedisTier(url, timeout_s=10)

    def flip(self, header, name, block):
        """Change one byte of one block of one tensor."""
        place = header.tensors[name].blocks_range(block, block)[0]
        if self.kind == "memory":
            self.tier.read(KEY).data[place] ^= 2
        elif self.kind == "ssd":
            content = bytearray(self._path.read_bytes())
            content[header.data_start + place] ^= 2
            self._path.write_bytes(content)
        else:
            layer = int(name.split(".")[1])
            with redis.Redis.from_url(self._url) as client:
                value = f"kvstitch:{{{KEY}}}:{layer}"
                at = place - header.layer_range(layer)[0]
                byte = client.getrange(value, at, at)[0]
                client.setrange(value, at, bytes([byte ^ 2]))


@pytest.fixture(params=["memory", "ssd", "redis"])
def place(request, tmp_path, redis_at):
    return Place(request.param, tmp_path, redis_at.url)


@pytest.fixture
def near():
    return FakeTier("near", kind="disk")


@pytest.fixture
def far():
    return FakeTier("far", kind="shared")


def check(outcome, chunk, picked):
    """Everything asked for is there and decodes to the rows of the chunk."""
    assert not outcome.missing and set(outcome.blocks.layers) == set(picked)
    for layer, wanted in picked.items():
        assert outcome.blocks.layers[layer].blocks == tuple(sorted(wanted))
        rows = outcome.blocks.tokens(layer)
        for got, whole in zip(outcome.blocks.layer(layer), chunk.layer(layer), strict=True):
            assert torch.equal(got, whole[rows])


@pytest.mark.parametrize("picked", [PICKED, EVERYTHING, {1: [4]}, {1: []}, {}])
@pytest.mark.parametrize("codec", codec_names())
def test_every_tier_gives_the_blocks(place, codec, picked):
    chunk = make_chunk(spec_of(codec))
    with TieredStore([place.tier]) as store:
        store.put(KEY, chunk)
        assert store.flush(10)
        outcome = store.read_blocks(KEY, picked, chunk.spec)
        check(outcome, chunk, picked)
        assert (outcome.tier, outcome.problems, outcome.bad) == (place.kind, (), ())
        assert outcome.seconds > 0
        count = sum(map(len, picked.values()))
        stats = store.stats().tier(place.kind)
        assert (stats.count("block", "ok"), stats.count("block", "corrupt")) == (count, 0)
        assert stats.count("read_blocks", "hit") == 1


@pytest.mark.parametrize("tokens", [1, 63, 64, 65])
def test_small_chunks(place, tokens):
    chunk = make_chunk(spec_of("int4", tokens=tokens))
    last = {layer: [chunk.spec.blocks - 1] for layer in range(3)}
    with TieredStore([place.tier]) as store:
        store.put(KEY, chunk)
        assert store.flush(10)
        check(store.read_blocks(KEY, last), chunk, last)


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
        assert store.flush(10) and store.locate([KEY]) == {KEY: "near"}


# Bytes: what the counters say is what moved.


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
        data = [outcome.blocks.nbytes for outcome in outcomes]
        assert data[1] == outcomes[1].nbytes < chunk.nbytes / 2
        # A run of neighbours is one read: six tensors, two or two runs each, and the last block.
        assert len(moved) == 1 + 2 * (6 * 2 + 6 * 2) + 6


def test_bytes_sent_by_redis(redis_at):
    chunk = make_chunk(spec_of("int8"))
    with TieredStore([RedisTier(redis_at.url, timeout_s=5)]) as store:
        store.put(KEY, chunk)
        assert store.flush(10)
        with redis.Redis.from_url(redis_at.url) as client:

            def sent():
                return client.info("stats")["total_net_output_bytes"]

            before = sent()
            own = sent() - before  # what asking costs
            before = sent()
            outcome = store.read_blocks(KEY, PICKED)
            received = sent() - before - own
        header = chunk.header.data_start
        replies = [header] + [one.nbytes for one in ranges(chunk, PICKED)]
        framing = sum(len(f"${size}\r\n") + len("\r\n") for size in replies)
        assert outcome.nbytes == sum(replies) == store.stats().tier("redis").bytes["read_blocks"]
        # INFO's own reply changes length by a digit or two.
        assert abs(received - sum(replies) - framing) <= 200


def ranges(chunk, picked):
    from kvstore.blocks import ranges_of, select

    return ranges_of(select(picked), chunk.spec)


def test_bytes_copied_from_memory():
    chunk = make_chunk(spec_of())
    with TieredStore([MemoryTier(1 << 24)]) as store:
        store.put(KEY, chunk)
        outcome = store.read_blocks(KEY, PICKED)
        assert (
            outcome.nbytes == outcome.blocks.nbytes == 5 * 64 * 2 * 2 * 8 * 2 - 20 * 2 * 2 * 8 * 2
        )
        assert store.stats().tier("memory").bytes["read_blocks"] == outcome.nbytes


# Bad bytes.


@pytest.mark.parametrize("tensor", ["k.2", "v.2", "k.2.scale", "v.2.min"])
def test_a_flipped_byte_costs_its_block_alone(place, tensor):
    """The last resort: the other blocks are given, the bad one is named."""
    chunk = make_chunk(spec_of("int4"))
    with TieredStore([place.tier]) as store:
        store.put(KEY, make_chunk(spec_of("int4")))
        assert store.flush(10)
        place.flip(chunk.header, tensor, 2)
        untouched = {0: [0, 3], 2: [1, 4]}
        check(store.read_blocks(KEY, untouched), chunk, untouched)
        outcome = store.read_blocks(KEY, PICKED)
        assert outcome.bad == (BadBlock(place.kind, 2, 2),)
        assert outcome.problems == ((place.kind, "corrupt"),)
        assert outcome.missing == {2: (2,)} and outcome.tier == place.kind
        assert outcome.blocks.layers[2].blocks == (1, 4)
        for layer in (0, 2):
            rows = outcome.blocks.tokens(layer)
            for got, whole in zip(outcome.blocks.layer(layer), chunk.layer(layer), strict=True):
                assert torch.equal(got, whole[rows])
        stats = store.stats().tier(place.kind)
        assert (stats.count("block", "ok"), stats.count("block", "corrupt")) == (4 + 4, 1)
        assert stats.count("read_blocks", "corrupt") == 1 and stats.healthy
        assert not store.contains([KEY]), "a bad copy does not stay"
        assert store.read_blocks(KEY, PICKED).blocks is None


def test_another_tier_makes_up_for_a_bad_block(place, far):
    chunk = make_chunk(spec_of("int8"))
    with TieredStore([place.tier, far]) as store:
        store.put(KEY, make_chunk(spec_of("int8")))
        assert store.flush(10)
        far.plant(KEY, chunk)
        place.flip(chunk.header, "v.0", 3)
        outcome = store.read_blocks(KEY, PICKED)
        check(outcome, chunk, PICKED)
        assert (outcome.tier, outcome.bad) == ("far", (BadBlock(place.kind, 0, 3),))
        assert set(outcome.loaded) == {place.kind, "far"}
        assert outcome.loaded["far"] == chunk.header.data_start + outcome.blocks.nbytes


def test_blocks_of_two_copies_never_mix(near, far):
    """Two workers may compute one chunk with other low bits."""
    mine, theirs = make_chunk(spec_of()), make_chunk(spec_of(), seed=1)
    near.plant(KEY, mine)
    far.plant(KEY, theirs)
    near.damage(KEY, mine.header.layer_range(0)[0])
    with TieredStore([near, far]) as store:
        check(store.read_blocks(KEY, PICKED), theirs, PICKED)


def test_the_copy_with_most_sound_blocks_is_the_answer(near, far):
    chunk = make_chunk(spec_of())
    tensors = chunk.header.tensors
    for tier, damaged in ((near, [("k.0", 0), ("k.0", 3)]), (far, [("v.2", 1)])):
        tier.plant(KEY, chunk)
        for name, block in damaged:
            tier.damage(KEY, tensors[name].blocks_range(block, block)[0])
    with TieredStore([near, far]) as store:
        outcome = store.read_blocks(KEY, PICKED)
        assert outcome.tier == "far" and outcome.missing == {2: (1,)}
        assert outcome.bad == (
            BadBlock("near", 0, 0),
            BadBlock("near", 0, 3),
            BadBlock("far", 2, 1),
        )
    near.plant(KEY, chunk)
    far.plant(KEY, chunk)
    near.damage(KEY, tensors["v.2"].blocks_range(1, 1)[0])
    for block in (0, 3):
        far.damage(KEY, tensors["k.0"].blocks_range(block, block)[0])
    with TieredStore([near, far]) as store:
        assert store.read_blocks(KEY, PICKED).tier == "near"


@pytest.mark.parametrize("keep", [0, 4, 100, 3000, -1])
def test_a_truncated_file(tmp_path, far, keep):
    chunk = make_chunk(spec_of())
    last = {2: [4]}
    with TieredStore([SsdTier(tmp_path, 1 << 24), far]) as store:
        store.put(KEY, chunk)
        assert store.flush(10)
        check(store.read_blocks(KEY, last), chunk, last)
        size = chunk.nbytes + keep if keep < 0 else keep
        os.truncate(chunk_path(tmp_path, KEY), size)
        outcome = store.read_blocks(KEY, last)
        check(outcome, chunk, last)
        assert (outcome.tier, outcome.problems) == ("far", (("ssd", "corrupt"),))
        assert store.locate([KEY]) == {KEY: "far"}


def test_a_file_that_was_replaced_by_another_length(tmp_path):
    """The header that is remembered is of a shorter chunk: believe only fresh bytes."""
    tier = SsdTier(tmp_path, 1 << 24)
    with TieredStore([tier]) as store:
        store.put(KEY, make_chunk(spec_of(tokens=200)))
        store.read_blocks(KEY, {0: [0]})
        tier.delete([KEY])
        tier.put(KEY, make_chunk(spec_of()))
        check(store.read_blocks(KEY, {2: [0, 3]}), make_chunk(spec_of()), {2: [0, 3]})
        tier.delete([KEY])
        tier.put(KEY, make_chunk(spec_of("int8")))
        wanted = make_chunk(spec_of("int8"))
        check(store.read_blocks(KEY, PICKED, wanted.spec), wanted, PICKED)


def test_a_replaced_chunk_is_not_taken_for_a_corrupt_one(place):
    old, new = make_chunk(spec_of()), make_chunk(spec_of(), seed=1)
    with TieredStore([place.tier]) as store:
        store.put(KEY, old)
        assert store.flush(10)
        check(store.read_blocks(KEY, PICKED), old, PICKED)
        place.tier.delete([KEY])
        place.tier.put(KEY, new)
        outcome = store.read_blocks(KEY, PICKED)
        check(outcome, new, PICKED)
        assert (outcome.problems, outcome.bad) == ((), ())


def test_another_chunk_is_refused_and_deleted(near, far):
    near.plant(KEY, make_chunk(spec_of(fingerprint="model-b")))
    far.plant(KEY, make_chunk(spec_of()))
    with TieredStore([near, far]) as store:
        outcome = store.read_blocks(KEY, PICKED, spec_of())
        check(outcome, make_chunk(spec_of()), PICKED)
        assert outcome.problems == (("near", "refused"),)
        assert store.locate([KEY]) == {KEY: "far"}
        # Also when its header is remembered from a read that expected nothing.
        assert store.read_blocks(KEY, {0: [0]}, spec_of("int8")).problems == (("far", "refused"),)


# The caller's own mistakes.


def test_asking_for_what_is_not_there(near):
    near.plant(KEY, make_chunk(spec_of()))
    with TieredStore([near]) as store:
        with pytest.raises(ChunkSpecError, match="block 5"):
            store.read_blocks(KEY, {0: [5]}, spec_of())
        assert not near.calls["read_header"], "known from what was expected"
        with pytest.raises(ChunkSpecError, match="layer 3"):
            store.read_blocks(KEY, {3: [0]})
        assert store.contains([KEY]) and store.stats().tier("near").healthy


# Slow and dead tiers.


@pytest.mark.parametrize("operation", ["read_header", "read_ranges"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [(TierTimeout("slow"), "timeout"), (TierError("odd"), "error"), (OSError(5, "I/O"), "error")],
)
def test_a_failing_tier_is_named_and_passed_over(near, far, operation, error, kind):
    for tier in (near, far):
        tier.plant(KEY, make_chunk(spec_of()))
    near.fail(operation, error)
    with TieredStore([near, far]) as store:
        outcome = store.read_blocks(KEY, PICKED)
        check(outcome, make_chunk(spec_of()), PICKED)
        assert (outcome.tier, outcome.problems) == ("far", (("near", kind),))
        near.heal()
        assert near.contains([KEY]), "not the chunk's fault"


def test_the_breaker_spares_a_slow_tier(near, far):
    far.plant(KEY, make_chunk(spec_of()))
    near.fail("read_header", TierTimeout("slow"))
    with TieredStore([near, far], breaker=BreakerSettings(cooldown_s=600)) as store:
        kinds = [store.read_blocks(KEY, PICKED).problems[0][1] for _ in range(4)]
    assert kinds == ["timeout", "unavailable", "unavailable", "unavailable"]
    assert near.calls["read_header"] == 1


def test_a_frozen_redis_is_one_timeout(tmp_path):
    with redis_server() as server:
        tiers = [RedisTier(server.url, timeout_s=0.3), SsdTier(tmp_path, 1 << 24)]
        with TieredStore(tiers, breaker=BreakerSettings(cooldown_s=600)) as store:
            store.put(KEY, make_chunk(spec_of()))
            assert store.flush(10) and store.read_blocks(KEY, PICKED).tier == "redis"
            server.freeze()
            begun = time.monotonic()
            for _ in range(20):
                check(store.read_blocks(KEY, PICKED), make_chunk(spec_of()), PICKED)
            assert time.monotonic() - begun < 5
            assert store.stats().tier("redis").count("read_blocks", "timeout") == 1
            server.thaw()


def test_a_chunk_whose_delete_is_owed_is_not_given(far):
    far.plant(KEY, make_chunk(spec_of()))
    far.fail("delete", TierTimeout("slow"))
    with TieredStore([far], breaker=BreakerSettings(cooldown_s=600)) as store:
        store.delete([KEY])
        assert store.read_blocks(KEY, PICKED).blocks is None and not far.calls["read_header"]


def test_a_redis_that_lost_one_layer_is_a_miss(redis_at):
    with TieredStore([RedisTier(redis_at.url, timeout_s=5)]) as store:
        store.put(KEY, make_chunk(spec_of()))
        assert store.flush(10)
        with redis.Redis.from_url(redis_at.url) as client:
            client.delete(f"kvstitch:{{{KEY}}}:2")
            check(store.read_blocks(KEY, {0: [1]}), make_chunk(spec_of()), {0: [1]})
            outcome = store.read_blocks(KEY, PICKED)
            assert outcome.blocks is None and outcome.problems == ()
            assert client.keys() == []


def test_many_readers_writers_and_faults(tmp_path, redis_at):
    """Whatever happens meanwhile, what is given is right."""
    chunks = [make_chunk(spec_of("int8"), seed=n) for n in range(4)]
    keys = [make_key(n) for n in range(4)]
    wrong: list[str] = []
    given: list[int] = []
    tiers = [
        MemoryTier(2 * chunks[0].nbytes),
        SsdTier(tmp_path, 3 * chunks[0].nbytes, fsync=False),
        RedisTier(redis_at.url, timeout_s=10),
    ]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            n = rng.randrange(4)
            match rng.randrange(8):
                case 0:
                    store.put(keys[n], chunks[n])
                case 1:
                    store.delete([keys[n]])
                case 2:
                    path = chunk_path(tmp_path, keys[n])
                    try:
                        with path.open("r+b") as handle:
                            handle.seek(rng.randrange(chunks[n].nbytes))
                            handle.write(b"\x55")
                    except FileNotFoundError:
                        pass
                case 3:
                    got = store.read(keys[n], chunks[n].spec).chunk
                    if got is not None and not same_chunk(got, chunks[n]):
                        wrong.append("chunk")
                case _:
                    picked = {
                        layer: rng.sample(range(5), rng.randrange(1, 5))
                        for layer in rng.sample(range(3), 2)
                    }
                    outcome = store.read_blocks(keys[n], picked, chunks[n].spec)
                    if outcome.blocks is None:
                        continue
                    given.append(outcome.blocks.count)
                    for layer in picked:
                        rows = outcome.blocks.tokens(layer)
                        got = outcome.blocks.layer(layer)[1]
                        if not torch.equal(got, chunks[n].layer(layer)[1][rows]):
                            wrong.append(f"layer {layer} of {n}")

    with TieredStore(tiers) as store:
        for key, chunk in zip(keys, chunks, strict=True):
            store.put(key, chunk)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not wrong and not any(thread.is_alive() for thread in threads)
        assert len(given) > 20
