import random

import pytest
import torch

from kvstitch.kvstore import MemoryTier, TierFull
from tests.kvstore.chunks import make_chunk, make_key, make_spec


def test_the_bound_holds_exactly():
    chunk = make_chunk()
    tier = MemoryTier(3 * chunk.nbytes)
    for n in range(3):
        tier.put(make_key(n), chunk)
    assert (tier.usage().entries, tier.usage().evictions) == (3, 0)
    assert tier.usage().used_bytes == tier.usage().capacity_bytes
    tier.put(make_key(3), chunk)
    assert (tier.usage().entries, tier.usage().evictions) == (3, 1)
    assert tier.read(make_key(0)) is None


def test_bound_under_random_use():
    sizes = [make_chunk(make_spec(tokens=tokens)) for tokens in (5, 40, 90)]
    tier = MemoryTier(4 * sizes[2].nbytes)
    rng = random.Random(3)
    held = {}
    for _ in range(2000):
        key, chunk = make_key(rng.randrange(30)), rng.choice(sizes)
        match rng.randrange(3):
            case 0:
                tier.read(key)
            case 1:
                if not tier.contains([key]):
                    held[key] = chunk.nbytes
                tier.put(key, chunk)
            case _:
                if rng.random() < 0.2:
                    tier.delete([key])
        used = sum(held[key] for key in list(tier.keys()))
        assert tier.usage().used_bytes == used <= 4 * sizes[2].nbytes


def test_too_large():
    chunk = make_chunk()
    tier = MemoryTier(chunk.nbytes - 1)
    with pytest.raises(TierFull):
        tier.put(make_key(), chunk)
    assert tier.usage().entries == 0


def test_popular_documents_survive_a_run_of_novel_ones():
    chunk = make_chunk()
    tier = MemoryTier(4 * chunk.nbytes)
    tier.put(make_key(0), chunk)
    for _ in range(3):
        tier.read(make_key(0))
    for n in range(1, 6):  # LRU would have flushed it with four
        tier.put(make_key(n), chunk)
    assert tier.contains([make_key(0)])


def test_popularity_ages():
    chunk = make_chunk()
    tier = MemoryTier(2 * chunk.nbytes)
    tier.put(make_key(0), chunk)
    for _ in range(5):
        tier.read(make_key(0))
    for n in range(1, 50):
        tier.put(make_key(n), chunk)
    assert not tier.contains([make_key(0)])


def test_among_equals_the_least_recently_used_goes():
    chunk = make_chunk()
    tier = MemoryTier(2 * chunk.nbytes)
    for n in (0, 1):
        tier.put(make_key(n), chunk)
    for n in (1, 0):
        tier.read(make_key(n))
    tier.put(make_key(2), chunk)
    assert tier.contains([make_key(0), make_key(1)]) == {make_key(0)}


def test_the_cheaper_form_of_equal_worth_stays():
    raw = make_chunk(make_spec(tokens=2000))
    small = make_chunk(make_spec("int8", tokens=2000))
    tier = MemoryTier(raw.nbytes + small.nbytes)
    tier.put(make_key(0), small)
    tier.put(make_key(1), raw)
    tier.put(make_key(2), small)
    assert tier.contains([make_key(0), make_key(1)]) == {make_key(0)}


def test_extras_are_entries_of_their_own():
    """A small sketch stays longer than chunks, a large one does not; both count for the bound."""
    chunk = make_chunk()
    tier = MemoryTier(3 * chunk.nbytes)
    tier.put_extra(make_key(0), "sketch", torch.zeros(100, dtype=torch.uint8))
    for n in range(20):
        tier.put(make_key(n), chunk)
        used = tier.usage().used_bytes
        assert used is not None and used <= 3 * chunk.nbytes
    assert tier.read_extra(make_key(0), "sketch") is not None
    assert tier.usage().used_bytes == 2 * chunk.nbytes + 100 and tier.usage().entries == 2
    tier.put_extra(make_key(1), "large", torch.zeros(2 * chunk.nbytes, dtype=torch.uint8))
    before = tier.usage().evictions
    tier.put(make_key(30), chunk)
    tier.put(make_key(31), chunk)
    assert tier.read_extra(make_key(1), "large") is None
    after = tier.usage().evictions
    assert before is not None and after is not None and after > before
    assert tier.read_extra(make_key(0), "sketch") is not None


def test_an_extra_that_does_not_fit():
    tier = MemoryTier(1000)
    tier.put_extra(make_key(), "sketch", torch.zeros(600, dtype=torch.uint8))
    assert tier.put_extra(make_key(), "sketch", torch.zeros(900, dtype=torch.uint8))
    assert tier.usage().used_bytes == 900
    with pytest.raises(TierFull):
        tier.put_extra(make_key(), "other", torch.zeros(1001, dtype=torch.uint8))
    kept = tier.read_extra(make_key(), "sketch")
    assert kept is not None and kept.numel() == 900


def test_a_read_of_ranges_counts_as_a_use():
    chunk = make_chunk()
    tier = MemoryTier(2 * chunk.nbytes)
    for n in (0, 1):
        tier.put(make_key(n), chunk)
    tier.read_ranges(make_key(0), chunk.header, [])
    tier.put(make_key(2), chunk)
    assert tier.contains([make_key(0), make_key(1)]) == {make_key(0)}


def test_a_million_hits_do_not_grow_the_heap():
    tier = MemoryTier(1 << 20)
    tier.put(make_key(), make_chunk())
    for _ in range(1000):
        tier.read(make_key())
    for n in range(200):
        tier.put_extra(make_key(), f"x{n}", torch.zeros(1, dtype=torch.uint8))
    assert len(tier._heap) < 64 + 4 * 201
