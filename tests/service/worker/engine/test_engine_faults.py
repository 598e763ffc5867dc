"""Damaged chunks and failing tiers: the answer is the same as without that cache, and the report
says what happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvstitch.kvstore import MemoryTier, RedisTier
from kvstitch.service.messages.requests import Precompute
from tests.redis_server import redis_server
from tests.service.worker.engines import A3, DOCUMENTS, Rig, disk, rig
from tests.service.worker.tiny import Tiny


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def chunk_file(folder: Path, r: Rig, number: int) -> Path:
    address = r.engine.admission.addresses(Precompute("", [], DOCUMENTS))[number]
    assert address is not None
    return next(folder.rglob(f"{address.key}.safetensors"))


@pytest.mark.parametrize("damage", [flip, truncate])
def test_a_damaged_file_is_recomputed_and_named(
    model: Tiny, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with rig(model) as r:
        r.precompute([DOCUMENTS[0], DOCUMENTS[2]])
        expected, _ = r.answer(A3)  # what the answer is when document 2 was never cached
    with rig(model, tiers=[disk(tmp_path)]) as r:
        r.precompute()
        damage(chunk_file(tmp_path, r, 2))
        tokens, report = r.answer(A3)
        stats = r.store.stats().tier("ssd")
        _, healed = r.answer(A3)
    assert tokens == expected
    assert [d.tier for d in report.documents] == ["ssd", "cold", "ssd"]
    assert report.documents[1].problems == ["ssd: corrupt"]
    assert stats.count("read", "corrupt") == 1
    assert [d.tier for d in healed.documents] == ["ssd"] * 3  # written back


def test_another_models_chunk_under_our_key_is_refused(model: Tiny, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with rig(model, tiers=[disk(theirs)], fingerprint="other") as r:
        r.precompute()
        foreign = chunk_file(theirs, r, 2)
    with rig(model, tiers=[disk(ours)]) as r:
        r.precompute([DOCUMENTS[0], DOCUMENTS[2]])
        expected, _ = r.answer(A3)
    with rig(model, tiers=[disk(ours)]) as r:
        r.precompute()
        chunk_file(ours, r, 2).write_bytes(foreign.read_bytes())
        tokens, report = r.answer(A3)
    assert report.documents[1].tier == "cold"
    assert report.documents[1].problems == ["ssd: refused"]
    assert tokens == expected


def test_a_restart_finds_everything_on_disk(model: Tiny, tmp_path: Path) -> None:
    with rig(model, tiers=[MemoryTier(1 << 24), disk(tmp_path)]) as r:
        r.precompute()
        before, _ = r.answer(A3)
    with rig(model, tiers=[MemoryTier(1 << 24), disk(tmp_path)]) as r:
        after, report = r.answer(A3)
        _, cached = r.answer(A3)
        assert r.store.stats().new_keys == 0
    assert after == before
    assert [d.tier for d in report.documents] == ["ssd"] * 3
    assert [d.tier for d in cached.documents] == ["memory"] * 3  # promoted


def test_a_second_worker_hits_what_the_first_put_into_redis(model: Tiny) -> None:
    with redis_server() as server:
        with rig(model, tiers=[MemoryTier(1 << 24), RedisTier(server.url)]) as r:
            r.precompute()
            before, _ = r.answer(A3)
            assert r.store.flush(20)
        with rig(model, tiers=[MemoryTier(1 << 24), RedisTier(server.url)]) as r:
            after, report = r.answer(A3)
            assert r.store.stats().new_keys == 0
    assert after == before
    assert [d.tier for d in report.documents] == ["redis"] * 3


def test_redis_stopped_mid_run_and_back(model: Tiny) -> None:
    with redis_server() as server, rig(model, tiers=[RedisTier(server.url)]) as r:
        r.precompute()
        assert r.store.flush(20)
        _, report = r.answer(A3)
        assert [d.tier for d in report.documents] == ["redis"] * 3
        server.stop()
        for _ in range(3):
            tokens, uncached = r.answer(A3)
            assert tokens and [d.tier for d in uncached.documents] == ["cold"] * 3
        problems = [p for d in uncached.documents for p in d.problems]
        assert problems and all(p.startswith("redis: ") for p in problems)
