"""Reads of blocks with bad bytes, slow and dead tiers: never a wrong block; faults are named."""

import os
import random
import threading

import pytest
import redis
import torch

from kvstitch.kvstore import (
    BadBlock,
    ChunkSpecError,
    MemoryTier,
    RedisTier,
    SsdTier,
    TieredStore,
    TierError,
    TierTimeout,
)
from kvstitch.kvstore.tiers.base import Tier
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from tests.kvstore.chunks import make_chunk, make_key, same_chunk, tensors_of
from tests.kvstore.places import KEY, PICKED, check, spec_of


@pytest.mark.parametrize("tensor", ["k.2", "v.2", "k.2.scale", "v.2.min"])
def test_a_flipped_byte_costs_its_block_alone(place, tensor):
    """If no tier has an intact copy, the other blocks are given and the bad one is named."""
    chunk = make_chunk(spec_of("int4"))
    with TieredStore([place.tier]) as store:
        store.put(KEY, make_chunk(spec_of("int4")))
        assert store.flush(60)
        place.flip(chunk.header, tensor, 2)
        untouched = {0: [0, 3], 2: [1, 4]}
        check(store.read_blocks(KEY, untouched), chunk, untouched)
        outcome = store.read_blocks(KEY, PICKED)
        assert outcome.bad == (BadBlock(place.kind, 2, 2),)
        assert outcome.problems == ((place.kind, "corrupt"),)
        assert outcome.missing == {2: (2,)} and outcome.tier == place.kind
        assert outcome.blocks is not None and outcome.blocks.layers[2].blocks == (1, 4)
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
        assert store.flush(60)
        far.plant(KEY, chunk)
        place.flip(chunk.header, "v.0", 3)
        outcome = store.read_blocks(KEY, PICKED)
        check(outcome, chunk, PICKED)
        assert (outcome.tier, outcome.bad) == ("far", (BadBlock(place.kind, 0, 3),))
        assert set(outcome.loaded) == {place.kind, "far"}
        assert outcome.blocks is not None
        assert outcome.loaded["far"] == chunk.header.data_start + outcome.blocks.nbytes


def test_blocks_of_two_copies_never_mix(near, far):
    """Two workers may compute the same chunk with different low bits."""
    mine, theirs = make_chunk(spec_of()), make_chunk(spec_of(), seed=1)
    near.plant(KEY, mine)
    far.plant(KEY, theirs)
    near.damage(KEY, mine.header.layer_range(0)[0])
    with TieredStore([near, far]) as store:
        check(store.read_blocks(KEY, PICKED), theirs, PICKED)


def test_the_copy_with_most_sound_blocks_is_the_answer(near, far):
    chunk = make_chunk(spec_of())
    tensors = tensors_of(chunk.header)
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
        assert store.flush(60)
        check(store.read_blocks(KEY, last), chunk, last)
        size = chunk.nbytes + keep if keep < 0 else keep
        os.truncate(chunk_path(tmp_path, KEY), size)
        outcome = store.read_blocks(KEY, last)
        check(outcome, chunk, last)
        assert (outcome.tier, outcome.problems) == ("far", (("ssd", "corrupt"),))
        assert store.locate([KEY]) == {KEY: "far"}


def test_a_file_that_was_replaced_by_another_length(tmp_path):
    """The remembered header belongs to a shorter chunk, so the header is read again."""
    tier = SsdTier(tmp_path, 1 << 24)
    with TieredStore([tier]) as store:
        store.put(KEY, make_chunk(spec_of(tokens=200)))
        store.read_blocks(KEY, {0: [0]})
        tier.delete([KEY])
        tier.put(KEY, make_chunk(spec_of()).under(KEY))
        check(store.read_blocks(KEY, {2: [0, 3]}), make_chunk(spec_of()), {2: [0, 3]})
        tier.delete([KEY])
        tier.put(KEY, make_chunk(spec_of("int8")).under(KEY))
        wanted = make_chunk(spec_of("int8"))
        check(store.read_blocks(KEY, PICKED, wanted.spec), wanted, PICKED)


def test_a_replaced_chunk_is_not_taken_for_a_corrupt_one(place):
    old, new = make_chunk(spec_of()), make_chunk(spec_of(), seed=1)
    with TieredStore([place.tier]) as store:
        store.put(KEY, old)
        assert store.flush(60)
        check(store.read_blocks(KEY, PICKED), old, PICKED)
        place.tier.delete([KEY])
        place.tier.put(KEY, new.under(KEY))
        outcome = store.read_blocks(KEY, PICKED)
        check(outcome, new, PICKED)
        assert (outcome.problems, outcome.bad) == ((), ())


def test_asking_for_what_is_not_there(near):
    near.plant(KEY, make_chunk(spec_of()))
    with TieredStore([near]) as store:
        with pytest.raises(ChunkSpecError, match="block 5"):
            store.read_blocks(KEY, {0: [5]}, spec_of())
        assert not near.calls["read_header"], "known from what was expected"
        for picked, message in (({3: [0]}, "layer 3"), ({0: [5]}, "block 5"), ({0: [-1]}, "-1")):
            with pytest.raises(ChunkSpecError, match=message):
                store.read_blocks(KEY, picked)
        assert store.contains([KEY]) and store.stats().tier("near").healthy


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


def test_a_redis_that_lost_one_layer_is_a_miss(redis_at):
    with TieredStore([RedisTier(redis_at.url, timeout_s=5)]) as store:
        store.put(KEY, make_chunk(spec_of()))
        assert store.flush(60)
        with redis.Redis.from_url(redis_at.url) as client:
            client.delete(f"kvstitch:{{{KEY}}}:2")
            check(store.read_blocks(KEY, {0: [1]}), make_chunk(spec_of()), {0: [1]})
            outcome = store.read_blocks(KEY, PICKED)
            assert outcome.blocks is None and outcome.problems == ()
            assert client.keys() == []


def test_many_readers_writers_and_faults(tmp_path, redis_at):
    """Whatever happens at the same time, what is returned is right, and nothing stays behind."""
    sketches = [{"id": torch.full((50 + n,), n)} for n in range(4)]
    chunks = [make_chunk(spec_of("int8"), seed=n) for n in range(4)]
    keys = [make_key(n) for n in range(4)]
    wrong: list[str] = []
    given: list[int] = []
    tiers: list[Tier] = [
        MemoryTier(2 * chunks[0].nbytes),
        SsdTier(tmp_path, 3 * chunks[0].nbytes, fsync=False),
        RedisTier(redis_at.url, timeout_s=10),
    ]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            n = rng.randrange(4)
            match rng.randrange(11):
                case 0 | 1:
                    store.put(keys[n], chunks[n])
                case 2:
                    store.delete([keys[n]])
                case 3:
                    path = chunk_path(tmp_path, keys[n])
                    try:
                        with path.open("r+b") as handle:
                            handle.seek(rng.randrange(chunks[n].nbytes))
                            handle.write(b"\x55")
                    except FileNotFoundError:
                        pass
                case 4:
                    store.put_extra(keys[n], "sketch", 1, sketches[n])
                case 5 | 6:
                    found = store.read_extra(keys[n], "sketch", 1)
                    if found and not torch.equal(found.tensors["id"], sketches[n]["id"]):
                        wrong.append("sketch")
                case 7:
                    whole = store.read(keys[n], chunks[n].spec).chunk
                    if whole is not None and not same_chunk(whole, chunks[n]):
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
        assert len(given) > 20 and store.flush(60)
        ssd = store.stats().tier("ssd").usage
        on_disk = sum(path.stat().st_size for path in tmp_path.glob("??/??/*"))
        assert ssd.used_bytes == on_disk <= ssd.capacity_bytes
        holders = {path.stem for path in tmp_path.glob("??/??/*.safetensors")}
        assert {path.name.partition(".")[0] for path in tmp_path.glob("??/??/*.extra")} <= holders
        store.delete(keys)
        assert store.stats().tier("memory").usage.used_bytes == 0
        assert not list(tmp_path.glob("??/??/*")) and not list((tmp_path / "tmp").iterdir())
        with redis.Redis.from_url(redis_at.url) as client:
            assert client.keys() == []
