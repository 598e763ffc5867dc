"""A request reports the outcome of its own prefetch; old outcomes are not reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kvstitch.kvstore import ChunkSpec, MemoryTier, TieredStore, encode_chunk
from kvstitch.service.worker.loading import loader as module
from kvstitch.service.worker.loading.chunk_stream import ChunkStream
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.model.addressing import Address
from tests.kvstore.fake_tier import FakeTier

SPEC = ChunkSpec("f", "raw", "float32", layers=2, kv_heads=1, head_dim=4, tokens=3)
ADDRESS = Address("0" * 32, SPEC, (1, 2, 3))


@pytest.fixture
def slow() -> FakeTier:
    tier = FakeTier("slow", kind="disk")
    tensors = [torch.randn(SPEC.shape) for _ in range(2)]
    tier.plant(ADDRESS.key, encode_chunk(SPEC, tensors, tensors))
    return tier


@pytest.fixture
def loader(slow: FakeTier) -> Iterator[Loader]:
    with TieredStore([MemoryTier(1 << 20), slow]) as store:
        one = Loader(store, threads=1)  # one thread: the load runs after the prefetch
        one.start()
        yield one
        one.close()


def loaded(loader: Loader) -> ChunkStream:
    """The whole chunk as a request reads it."""
    stream = loader.join(ADDRESS, None)
    stream.part_futures[0].result()
    loader.leave(stream)
    return stream


def test_the_tier_is_the_one_the_prefetch_read(loader: Loader) -> None:
    loader.prefetch([ADDRESS])
    first = loaded(loader)
    assert first.chunk is not None and first.tier == "slow"
    assert loaded(loader).tier == "memory"


def test_a_bad_copy_met_by_the_prefetch_is_reported(loader: Loader, slow: FakeTier) -> None:
    slow.damage(ADDRESS.key)
    loader.prefetch([ADDRESS])
    outcome = loaded(loader)
    assert outcome.chunk is None and outcome.problems == [("slow", "corrupt")]
    assert loaded(loader).problems == []


def test_old_news_is_not_reported(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    loader.prefetch([ADDRESS])
    monkeypatch.setattr(module, "NOTE_S", -1.0)
    assert loaded(loader).tier == "memory"
