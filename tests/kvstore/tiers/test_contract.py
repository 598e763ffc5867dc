"""What every tier does alike."""

import threading

import pytest
import torch

from kvstore import ChunkSpecError, MemoryTier, RedisTier, SsdTier, TierUnavailable
from kvstore.codecs import codec_names
from kvstore.tiers.fake import FakeTier
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk


@pytest.fixture(params=["memory", "ssd", "redis", "fake"])
def tier(request, tmp_path):
    if request.param == "memory":
        tier = MemoryTier(1 << 24)
    elif request.param == "ssd":
        tier = SsdTier(tmp_path, 1 << 24)
    elif request.param == "redis":
        tier = RedisTier(request.getfixturevalue("redis_at").url, timeout_s=10)
    else:
        tier = FakeTier()
    tier.start()
    yield tier
    tier.close()


@pytest.mark.parametrize("codec", codec_names())
def test_put_and_read_back(tier, codec):
    chunk = make_chunk(make_spec(codec))
    assert tier.read(make_key()) is None
    tier.put(make_key(), chunk)
    got = tier.read(make_key())
    assert same_chunk(got, chunk)
    got.verify()
    assert tier.read_header(make_key()) == chunk.header


@pytest.mark.parametrize("layers", [[0], [2, 0], [0, 1, 2], [1, 1], []])
def test_layers_alone(tier, layers):
    chunk = make_chunk(make_spec("int8"))
    assert tier.read_layers(make_key(), chunk.header, layers) is None
    tier.put(make_key(), chunk)
    got = tier.read_layers(make_key(), chunk.header, layers)
    assert set(got) == set(layers)
    for layer, raw in got.items():
        assert torch.equal(raw, chunk.layer_bytes(layer))
        chunk.header.verify_layer(layer, raw)


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
    if tier.name != "redis":  # reports the whole server's memory
        assert tier.usage() == before


def test_what_is_read_outlives_its_deletion(tier):
    chunk = make_chunk()
    tier.put(make_key(), chunk)
    got = tier.read(make_key())
    tier.delete([make_key()])
    got.verify()
    assert same_chunk(got, chunk)


def test_foreign_keys_go_nowhere(tier):
    if tier.name in ("ssd", "redis"):
        with pytest.raises(ChunkSpecError):
            tier.put("../../escape", make_chunk())


def test_not_started(tier):
    if tier.name in ("ssd", "redis"):
        tier.close()
        with pytest.raises(TierUnavailable, match="not started"):
            tier.read(make_key())


def test_many_threads(tier):
    chunks = [make_chunk(seed=n) for n in range(6)]
    wrong: list[str] = []

    def work(seed: int) -> None:
        for step in range(40):
            n = (seed * 7 + step) % 6
            key = make_key(n)
            match step % 4:
                case 0 | 1:
                    got = tier.read(key)
                    if got is not None and not same_chunk(got, chunks[n]):
                        wrong.append(f"{n} differs")
                case 2:
                    tier.put(key, chunks[n])
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
