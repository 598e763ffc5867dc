"""The precompute queue: what is computed together, and purges.

A prompt that started before its document was deleted does not store the chunk again when it ends;
only storing the document again does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstitch.kvstore import ChunkSpec, EncodedChunk, encode_chunk
from kvstitch.service.messages.replies import Precomputed
from kvstitch.service.messages.requests import ChunkTokens, Method, Precompute
from kvstitch.service.worker.forward import chunk_prefill, layer_ops
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ComputedChunk
from kvstitch.service.worker.methods.layer_view import ChunkExtra
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.steps import Steps
from tests.kvstore.fake_tier import FakeTier
from tests.service.worker import engines
from tests.service.worker.engines import PIE, Rig, disk, rig
from tests.service.worker.tiny import S, Tiny, random_model, tiny_config, tiny_of

DOCUMENTS = [*engines.DOCUMENTS, ChunkTokens(4, [71, 72, 73, 74, 75])]
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
    return [a for a in r.engine.admission.addresses(Precompute("", S, DOCUMENTS)) if a is not None]


def stored(r: Rig) -> list[int]:
    """By number of the segment, S first."""
    keys = [address.key for address in addresses(r)]
    there = r.store.contains(keys)
    return [number for number, key in enumerate(keys) if key in there]


def purge(r: Rig) -> None:
    """As the worker does it."""
    key = addresses(r)[PURGED].key
    r.engine.forget([key], [])
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
        moment += 2
    assert rounds > 10


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


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Numbers of tokens of the chunks that were computed together."""
    made: list[list[int]] = []
    compute = ChunkPrefill.compute_together

    def recorded(
        self: ChunkPrefill, wanted: Sequence[Address], *, extra: ChunkExtra | None = None
    ) -> Steps[list[ComputedChunk]]:
        made.append([len(address.ids) for address in wanted])
        return compute(self, wanted, extra=extra)

    monkeypatch.setattr(ChunkPrefill, "compute_together", recorded)
    return made


def test_chunks_behind_the_same_parts_are_computed_together(
    model: Tiny, batches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as fill a tile; later ones that still fit go first, nothing is left out."""
    monkeypatch.setattr(layer_ops, "TILE_ROWS", {"cpu": 23})
    lengths = [len(document.ids) for document in DOCUMENTS]
    assert lengths == [11, 6, 9, 5]
    with rig(model) as r:
        r.precompute(DOCUMENTS)
        assert stored(r) == [0, 1, 2, 3, 4]
    assert batches == [[len(S), 11, 5], [6, 9]]


def test_what_stands_behind_other_parts_is_not(model: Tiny, batches: list[list[int]]) -> None:
    with rig(model) as r:
        for mode in ("none", "system"):
            for address in r.engine.admission.addresses(Precompute("", S, DOCUMENTS, mode))[1:]:
                assert address is not None
                r.engine.precompute_queue.add(address, id="ingest")
        r.run()
        assert r.engine.precompute_queue.counts == {"stored": 8, "present": 0, "failed": 0}
    assert [len(batch) for batch in batches if batch != [len(S)]] == [4, 4]


def test_one_that_fails_does_not_fail_the_others(
    model: Tiny, batches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = encode_chunk

    def broken(spec: ChunkSpec, *args: Any, **kwargs: Any) -> EncodedChunk:
        if spec.tokens == len(DOCUMENTS[1].ids):
            raise MemoryError("no room")
        return encode(spec, *args, **kwargs)

    monkeypatch.setattr(chunk_prefill, "encode_chunk", broken)
    with rig(model) as r:
        r.precompute(DOCUMENTS)
        assert stored(r) == [0, 1, 3, 4]
        failed = [e for e in r.events if isinstance(e, Precomputed) and e.status == "failed"]
        assert ["no room" in e.message for e in failed] == [True]
    assert len(batches[0]) == 5
    assert all(len(batch) == 1 for batch in batches[1:])


def test_a_purge_takes_one_out_of_those_computed_together(model: Tiny) -> None:
    """The others are started again."""
    with rig(model) as r:
        for address in addresses(r):
            r.engine.precompute_queue.add(address)
        r.engine.precompute_queue.advance()
        r.engine.precompute_queue.advance()
        purge(r)
        r.run()
        assert stored(r) == [0, 1, 2, 4]


@pytest.mark.parametrize("moment", ["waiting", "begun", "being written"])
def test_a_purge_takes_its_chunk_out_of_a_precompute_call(model: Tiny, moment: str) -> None:
    """Of one that was given up, or of another gateway's. What was being written is purged, too."""
    tier = FakeTier("slow", kind="disk")
    with rig(model, tiers=[tier], threads=1) as r:
        queue = r.engine.precompute_queue
        for number, address in enumerate(addresses(r)):
            queue.add(address, id="call", chunk_id=number)
        if moment == "begun":
            queue.advance()
            queue.advance()
        if moment == "being written":
            tier.block("put")
            busy_rounds(r)
            threading.Timer(0.1, tier.release).start()
        purge(r)
        r.run()
        assert stored(r) == [0, 1, 2, 4]
        ended = {e.chunk_id: e for e in r.events if isinstance(e, Precomputed)}
        assert set(ended) == {0, 1, 2, 3, 4}
        assert all(0 <= event.seconds < 60 for event in ended.values())
        if moment != "being written":
            assert ended.pop(PURGED).status == "present", "there is nothing to store any more"
        assert {event.status for event in ended.values()} == {"stored"}


@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "begun"])
def test_what_nobody_waits_for_any_more_is_not_computed(some_stored: Rig, begun: bool) -> None:
    r, queue = some_stored, some_stored.engine.precompute_queue
    there, (wanted, gone, back) = stored(r), addresses(r)[2:5]
    queue.add(gone, id="gone")
    queue.add(wanted, id="wanted")
    queue.add(back)
    for _ in range(3 if begun else 0):
        r.engine.step()
    queue.cancel({"gone"})
    queue.forget_all()  # write-backs, too: they are nobody's
    r.run()
    assert stored(r) == sorted([*there, 2])
    assert [e.id for e in r.events if isinstance(e, Precomputed)][-1] == "wanted"
    queue.add(back)  # and is not remembered as queued
    r.run()
    assert stored(r) == sorted([*there, 2, 4])
