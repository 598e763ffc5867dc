"""What all tiers have in common; kvstitch-s3 runs these tests of its tier, too."""

import threading
from dataclasses import replace

import pytest
import torch

from kvstitch.kvstore import (
    ChunkCorrupt,
    ChunkSpecError,
    MemoryTier,
    RedisTier,
    SsdTier,
    TierUnavailable,
)
from kvstitch.kvstore.format.chunk import block_selection, selection_ranges
from kvstitch.kvstore.format.codecs import CODECS
from kvstitch.kvstore.format.verifier import Verifier
from kvstitch.kvstore.tiers.base import Tier
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk
from tests.kvstore.fake_tier import FakeTier


@pytest.fixture(params=["memory", "ssd", "ssd shared", "redis", "cluster", "fake"])
def tier(request, tmp_path):
    if request.param == "memory":
        tier: Tier = MemoryTier(1 << 24)
    elif request.param == "ssd":
        tier = SsdTier(tmp_path, 1 << 24)
    elif request.param == "ssd shared":
        tier = SsdTier(tmp_path, 1 << 24, member=0, name="ssd shared")
    elif request.param == "redis":
        tier = RedisTier(request.getfixturevalue("redis_at").url, timeout_s=30, deadline_s=60)
    elif request.param == "cluster":
        tier = RedisTier(request.getfixturevalue("cluster").url, timeout_s=30, deadline_s=60)
    else:
        tier = FakeTier()
    tier.start()
    yield tier
    tier.close()


@pytest.mark.parametrize("codec", CODECS)
def test_put_and_read_back(tier, codec):
    chunk = make_chunk(make_spec(codec))
    assert tier.read(make_key()) is None
    tier.put(make_key(), chunk)
    got = tier.read(make_key())
    assert same_chunk(got, chunk)
    got.verify()
    assert tier.read_header(make_key()) == chunk.header


@pytest.mark.parametrize(
    ("codec", "picked"),
    [
        ("raw", {0: [0]}),
        ("int8", {2: [1], 0: [0, 2]}),
        ("int4", {layer: [0, 1, 2] for layer in range(3)}),
        ("int2", {0: [], 1: [2]}),
        ("raw", {}),
    ],
)
def test_ranges_alone(tier, codec, picked):
    chunk = make_chunk(make_spec(codec, tokens=150))
    selection = block_selection(picked)
    ranges = selection_ranges(selection, chunk.spec)
    assert tier.read_ranges(make_key(), chunk.header, ranges) is None
    tier.put(make_key(), chunk)
    got = tier.read_ranges(make_key(), chunk.header, ranges)
    want = [chunk.data[start:end] for _, start, end in ranges]
    assert got.dtype == torch.uint8 and torch.equal(got, torch.cat([got[:0], *want]))
    blocks, bad = Verifier(chunk.header.key, selection=selection).blocks(chunk.header, got)
    assert not bad and blocks.nbytes == got.numel()


def test_ranges_of_another_chunk_are_refused(tier):
    """The header belongs to a chunk that was here before, or to one that never was."""
    other = make_chunk(make_spec(tokens=200))
    tier.put(make_key(), make_chunk(make_spec(tokens=70)))
    with pytest.raises(ChunkCorrupt):
        tier.read_ranges(make_key(), other.header, selection_ranges({1: (2, 3)}, other.spec))


def test_extras(tier):
    key, raw = make_key(), torch.arange(200, dtype=torch.uint8)
    assert tier.read_extra(key, "sketch") is None
    tier.put(key, make_chunk())
    bare = tier.usage()
    assert tier.read_extra(key, "sketch") is None
    assert tier.put_extra(key, "sketch", raw) and tier.put_extra(key, "other", raw[:50])
    assert torch.equal(tier.read_extra(key, "sketch"), raw)
    assert torch.equal(tier.read_extra(key, "other"), raw[:50])
    assert tier.put_extra(key, "sketch", raw[:100])
    assert torch.equal(tier.read_extra(key, "sketch"), raw[:100])
    assert same_chunk(tier.read(key), make_chunk()) and set(tier.keys()) == {key}
    if tier.name not in ("redis", "s3"):  # one reports the whole server's memory, one nothing
        assert tier.usage() == replace(bare, used_bytes=bare.used_bytes + 150)
    assert tier.delete([key]) == 1
    assert tier.read_extra(key, "sketch") is tier.read_extra(key, "other") is None
    tier.put(key, make_chunk())
    assert tier.read_extra(key, "sketch") is None
    if tier.name not in ("redis", "s3"):
        assert tier.usage() == bare


def test_extras_stand_beside_their_chunk(tier):
    """Only the memory tier keeps extra tensors without their chunk."""
    kept = tier.put_extra(make_key(), "sketch", torch.ones(9, dtype=torch.uint8))
    assert kept == (tier.name == "memory")
    assert (tier.read_extra(make_key(), "sketch") is not None) == kept
    assert tier.delete([make_key()]) == 0
    assert tier.read_extra(make_key(), "sketch") is None
    if tier.name not in ("redis", "s3"):
        assert tier.usage().used_bytes == 0


def test_foreign_names_of_extras_go_nowhere(tier):
    tier.put(make_key(), make_chunk())
    if tier.name in ("ssd", "redis", "s3"):
        for call in (
            lambda: tier.put_extra(make_key(), "../x", torch.ones(1, dtype=torch.uint8)),
            lambda: tier.read_extra(make_key(), "../x"),
        ):
            with pytest.raises(ChunkSpecError):
                call()


def test_contains_keys_delete(tier):
    keys = [make_key(n) for n in range(5)]
    for n, key in enumerate(keys[:4]):
        tier.put(key, make_chunk(seed=n))
    assert tier.contains(keys) == set(keys[:4]) == set(tier.keys())
    assert tier.contains([]) == set() and tier.delete([]) == 0
    assert tier.delete([keys[0], keys[1], keys[0], keys[4]]) == 2
    assert tier.contains(keys) == set(keys[2:4])
    assert tier.read(keys[0]) is None and tier.read_header(keys[0]) is None
    assert tier.delete([keys[0]]) == 0


def test_a_second_put_changes_nothing(tier):
    chunk = make_chunk()
    tier.put(make_key(), chunk)
    before = tier.usage()
    tier.put(make_key(), make_chunk())
    assert same_chunk(tier.read(make_key()), chunk)
    if tier.name not in ("redis", "s3"):  # one reports the whole server's memory, one nothing
        assert tier.usage() == before


def test_what_is_read_outlives_its_deletion(tier):
    chunk = make_chunk()
    tier.put(make_key(), chunk)
    got = tier.read(make_key())
    tier.delete([make_key()])
    got.verify()
    assert same_chunk(got, chunk)


def test_foreign_keys_go_nowhere(tier):
    if tier.name in ("ssd", "redis", "s3"):
        with pytest.raises(ChunkSpecError):
            tier.put("../../escape", make_chunk())


def test_not_started(tier):
    if tier.name in ("ssd", "redis", "s3"):
        tier.close()
        with pytest.raises(TierUnavailable, match="not started"):
            tier.read(make_key())


def test_many_threads(tier):
    chunks = [make_chunk(seed=n) for n in range(6)]
    ranges = selection_ranges({0: (0,), 2: (0, 1)}, make_spec())
    parts = [torch.cat([chunk.data[start:end] for _, start, end in ranges]) for chunk in chunks]
    extras = [torch.full((100 + n,), n, dtype=torch.uint8) for n in range(6)]
    wrong: list[str] = []

    def work(seed: int) -> None:
        for step in range(70):
            n = (seed * 7 + step) % 6
            key = make_key(n)
            match step % 7:
                case 0:
                    got = tier.read(key)
                    if got is not None and not same_chunk(got, chunks[n]):
                        wrong.append(f"{n} differs")
                case 1:
                    got = tier.read_ranges(key, chunks[n].header, ranges)
                    if got is not None and not torch.equal(got, parts[n]):
                        wrong.append(f"ranges of {n} differ")
                case 2 | 3:
                    tier.put(key, chunks[n])
                case 4:
                    tier.put_extra(key, "sketch", extras[n])
                case 5:
                    got = tier.read_extra(key, "sketch")
                    if got is not None and not torch.equal(got, extras[n]):
                        wrong.append(f"extra of {n} differs")
                case _:
                    tier.delete([key])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    if tier.name in ("memory", "ssd"):
        tier.delete([make_key(n) for n in range(6)])
        assert (tier.usage().entries, tier.usage().used_bytes) == (0, 0)
