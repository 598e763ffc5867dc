"""The precompute queue and purges: a prompt that started before its document was deleted does not
store the chunk again when it ends; only storing the document again does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.tiers.testing.fake_tier import FakeTier
from service.records import Chunk, Method
from service.worker.model.addressing import Address
from tests.service.worker import engines
from tests.service.worker.engines import PIE, Rig, disk, rig
from tests.service.worker.tiny import S, Tiny, random_model, tiny_config, tiny_of

DOCUMENTS = [*engines.DOCUMENTS, Chunk(4, [71, 72, 73, 74, 75])]
PURGED = 3
# PIE's chunks are computed again in the queue; SamKV computes what it misses itself, if any
# document is stored.
METHODS = pytest.mark.parametrize("method", [PIE, Method("samkv")], ids=lambda m: m.name)


@pytest.fixture(scope="module")
def model() -> Tiny:
    return tiny_of(random_model(tiny_config("llama", "llama3")))


@pytest.fixture
def some_stored(model: Tiny, tmp_path: Path) -> Iterator[Rig]:
    """A rig on a disk that has the first document."""
    with rig(model, tiers=[disk(tmp_path)]) as r:
        r.precompute(DOCUMENTS[:1])
        yield r


def addresses(r: Rig) -> list[Address]:
    return [a for a in r.engine.admission.addresses(S, DOCUMENTS, "none", "") if a is not None]


def stored(r: Rig) -> list[int]:
    """By number of the segment, S first."""
    keys = [address.key for address in addresses(r)]
    there = r.store.contains(keys)
    return [number for number, key in enumerate(keys) if key in there]


def purge(r: Rig) -> None:
    """As the worker does it."""
    key = addresses(r)[PURGED].key
    r.engine.idle_work.forget([key])
    r.store.delete({key})


def busy_rounds(r: Rig, most: int = 10_000) -> int:
    """Run until nothing is left to compute, or for that many rounds of doing something."""
    rounds = 0
    while rounds < most and not (r.engine.idle and not r.engine.scheduler.active):
        if r.engine.idle:
            time.sleep(1e-4)
        else:
            rounds += 1
        r.events.extend(r.engine.step())
    return rounds


@METHODS
def test_without_a_purge_all_is_written_back(some_stored: Rig, method: Method) -> None:
    some_stored.answer(method, DOCUMENTS)
    assert stored(some_stored) == [0, 1, 2, 3, 4]


@METHODS
def test_purged_at_any_moment_it_stays_away(model: Tiny, tmp_path: Path, method: Method) -> None:
    """Before the prompt computed it, while it waits to be written, afterwards."""
    rounds = moment = 0
    while moment <= rounds:
        with rig(model, tiers=[disk(tmp_path / str(moment))]) as r:
            r.precompute(DOCUMENTS[:1])
            r.submit(method, DOCUMENTS)
            busy_rounds(r, moment)
            purge(r)
            rounds = max(rounds, moment + busy_rounds(r))
            r.run()
            assert stored(r) == [0, 1, 2, 4], f"purged in round {moment}"
            assert r.engine.precompute_queue.counts["failed"] == 0
        moment += 4
    assert rounds > 20


@METHODS
def test_a_purge_comes_after_writes_under_way(model: Tiny, method: Method) -> None:
    """One write hangs, the purged document's waits behind it, another one comes after."""
    tier = FakeTier("slow", kind="disk")
    with rig(model, tiers=[tier], threads=1) as r:
        r.precompute(DOCUMENTS[:1])
        r.submit(method, DOCUMENTS)
        tier.block("put")
        busy_rounds(r)
        assert r.engine.precompute_queue.pending == 3
        threading.Timer(0.1, tier.release).start()
        purge(r)
        r.run()
        assert stored(r) == [0, 1, 2, 4]


@METHODS
def test_stored_again_it_is_written_back_again(some_stored: Rig, method: Method) -> None:
    some_stored.precompute(DOCUMENTS)
    purge(some_stored)
    some_stored.answer(method, DOCUMENTS)
    assert stored(some_stored) == [0, 1, 2, 4]
    some_stored.precompute(DOCUMENTS)
    assert stored(some_stored) == [0, 1, 2, 3, 4]
    some_stored.store.delete({addresses(some_stored)[PURGED].key})  # lost, not purged
    some_stored.answer(method, DOCUMENTS)
    assert stored(some_stored) == [0, 1, 2, 3, 4]
