"""Prompts that start before their chunks are loaded: the answers are the same, whatever arrives
late, damaged or not at all, and nothing is read twice or without a use."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstitch.kvstore import ChunkSpec, MemoryTier, RedisTier
from kvstitch.kvstore.tiers.base import Tier
from kvstitch.service.messages.requests import Method, Precompute
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.loading import chunk_stream as streaming
from kvstitch.service.worker.loading.planner import LATE
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.sequences.prefill_launcher import PrefillLauncher
from tests.kvstore.fake_tier import FakeTier
from tests.redis_server import redis_server
from tests.service.worker.engine.test_engine_faults import chunk_file
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, Rig, disk, rig
from tests.service.worker.tiny import Tiny

METHODS = [
    PIE,
    A3,
    Method("cacheblend"),
    Method("cacheblend", {"schedule": [0.5, 0.3]}),
    Method("question_scout"),
    Method("legolink", {"first": 2, "last": 2}),
]


@pytest.fixture(autouse=True)
def every_layer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PART_BYTES", 1)


@pytest.mark.parametrize("layers", [1, 2, 5, 24, 31])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0, 1.4, 1.5, 2.6, 7.2, 1e3])
def test_parts_are_of_about_equal_size(
    monkeypatch: pytest.MonkeyPatch, layers: int, share: float
) -> None:
    """Every layer is in the part that the planner takes it to be in, and none is far too small."""
    address = Address("k", ChunkSpec("f", "raw", "float32", layers, 2, 16, 100), (1,) * 100)
    stored = streaming.stored_bytes(address)
    monkeypatch.setattr(streaming, "PART_BYTES", stored / share)
    parts = streaming.parts_of(address)
    of_layer = [number for number, part in enumerate(parts) for _ in part]
    assert of_layer == [layer * len(parts) // layers for layer in range(layers)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    least = min(map(len, parts)) / layers * share
    assert len(parts) == 1 or least > 0.5 or len(parts) == layers


def names(value: object) -> str:
    return value.name if isinstance(value, Method) else str(value)


class Events(FakeTier):
    """A disk that does something when a part of a chunk is read: `at[key]` (read number → what)."""

    def __init__(self) -> None:
        super().__init__("slow", kind="disk")
        self.reads: dict[str, int] = {}
        self.at: dict[str, dict[int, Any]] = {}

    def read_ranges(self, key: str, *args: Any, **kwargs: Any) -> Any:
        number = self.reads[key] = self.reads.get(key, 0) + 1
        if number in self.at.get(key, {}):
            self.at[key][number]()
        return super().read_ranges(key, *args, **kwargs)


@contextmanager
def streaming_rig(model: Tiny, tier: Tier, **kwargs: Any) -> Iterator[Rig]:
    with rig(model, tiers=[tier], **kwargs) as r:
        r.precompute()
        assert r.store.flush(20)
        yield r


def keys(r: Rig) -> list[str]:
    addresses = r.engine.admission.addresses(Precompute("", [], DOCUMENTS))[1:]
    return [address.key for address in addresses if address is not None]


@pytest.mark.parametrize("method", METHODS, ids=names)
def test_answers_are_those_from_memory(model: Tiny, tmp_path: Path, method: Method) -> None:
    with streaming_rig(model, MemoryTier(1 << 24)) as r:
        expected, whole = r.answer(method, max_tokens=10)
    with streaming_rig(model, disk(tmp_path)) as r:
        tokens, report = r.answer(method, max_tokens=10)
        parts = r.store.stats().tier("ssd").count("read_blocks", "hit")
    assert tokens == expected
    assert [d.tier for d in report.documents] == ["ssd"] * 3
    assert parts == 4 * model.decoder.layers
    assert report.rows_per_layer == whole.rows_per_layer
    assert report.flops == whole.flops


def test_from_redis_too_and_into_memory_afterwards(model: Tiny) -> None:
    with redis_server() as server:
        with streaming_rig(model, RedisTier(server.url)) as r:
            expected, _ = r.answer(A3)
        with rig(model, tiers=[MemoryTier(1 << 24), RedisTier(server.url)]) as r:
            tokens, report = r.answer(A3)
            while len(r.store.locate(keys(r))) < 3 or "redis" in r.store.locate(keys(r)).values():
                pass
            again, cached = r.answer(A3)
    assert tokens == again == expected
    assert [d.tier for d in report.documents] == ["redis"] * 3
    assert [d.tier for d in cached.documents] == ["memory"] * 3


@pytest.mark.parametrize("method", METHODS, ids=names)
@pytest.mark.parametrize("layer", [0, 3])
def test_a_layer_damaged_on_disk_makes_its_document_uncached(
    model: Tiny, tmp_path: Path, method: Method, layer: int
) -> None:
    with rig(model) as r:
        r.precompute([DOCUMENTS[0], DOCUMENTS[2]])
        expected, uncached = r.answer(method)
    with streaming_rig(model, disk(tmp_path)) as r:
        flip_layer(chunk_file(tmp_path, r, 2), layer, model.decoder.layers)
        tokens, report = r.answer(method)
        healed_tokens, healed = r.answer(method)
        expected_healed, _ = r.answer(method)
    assert tokens == expected
    assert [d.tier for d in report.documents] == ["ssd", "cold", "ssd"]
    assert report.documents[1].problems == ["ssd: corrupt"]
    assert report.flops >= uncached.flops
    assert healed_tokens == expected_healed
    assert [d.tier for d in healed.documents] == ["ssd"] * 3  # written back


def flip_layer(file: Path, layer: int, layers: int) -> None:
    data = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    data[start + (len(data) - start) * layer // layers + 5] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("method", [PIE, A3, Method("question_scout")], ids=names)
def test_a_chunk_that_vanishes_midway(model: Tiny, method: Method) -> None:
    with rig(model) as r:
        r.precompute([DOCUMENTS[0], DOCUMENTS[2]])
        expected, _ = r.answer(method)
    tier = Events()
    with streaming_rig(model, tier) as r:
        key = keys(r)[1]
        tier.at[key] = {4: lambda: tier.delete([key])}
        tokens, report = r.answer(method)
        present = r.store.contains([key])
    assert tokens == expected
    assert [d.tier for d in report.documents] == ["slow", "cold", "slow"]
    assert present  # computed again and stored


@pytest.mark.parametrize("method", [PIE, A3, Method("question_scout")], ids=names)
def test_a_chunk_that_is_lost_while_the_prefill_starts(
    model: Tiny, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader thread gives it up between the plan of the prompt and its first layer."""
    with rig(model) as r:
        r.precompute([DOCUMENTS[0], DOCUMENTS[2]])
        expected, _ = r.answer(method)
    plan, calls = PrefillLauncher._layout, []

    def lose(self: PrefillLauncher, sequence: Any, uncached: list[bool]) -> PromptLayout:
        calls.append(uncached)
        if len(calls) == 2:  # the first one was to admit it
            sequence.loads.segments[2].stream.lost = True
        return plan(self, sequence, uncached)

    monkeypatch.setattr(PrefillLauncher, "_layout", lose)
    with streaming_rig(model, Events()) as r:
        tokens, report = r.answer(method)
    assert len(calls) == 3 and calls[2][2] and not calls[1][2]
    assert tokens == expected
    assert report.documents[1].tier == "cold"


@pytest.mark.parametrize("method", [PIE, A3, Method("question_scout")], ids=names)
def test_a_tier_that_stalls_is_not_waited_for(model: Tiny, method: Method) -> None:
    with rig(model) as r:
        r.precompute([DOCUMENTS[0], DOCUMENTS[2]])
        expected, _ = r.answer(method)
    tier = Events()
    with streaming_rig(model, tier, planner=True) as r:
        tier.at[keys(r)[1]] = {3: lambda: tier.block("read_ranges")}
        name = r.submit(method)
        while not any(getattr(e, "id", "") == name for e in r.events):
            r.events.extend(r.engine.step())
        tier.release()
        r.run()
        report = r.done(name).report
        assert r.engine.planner is not None
        late = r.engine.planner.counts["late"]
    uncached = [d for d in report.documents if d.tier == "cold"]
    assert report.documents[1] in uncached and late >= 1
    assert all(d.plan == "recompute" and d.why == LATE for d in uncached)
    assert all("planner: the load was late, recompute is faster" in d.problems for d in uncached)
    if len(uncached) == 1:
        assert r.tokens(name) == expected


def test_an_aborted_prompt_is_not_read_on(model: Tiny) -> None:
    tier = Events()
    with streaming_rig(model, tier) as r:
        tier.block("read_ranges")
        name = r.submit(PIE)
        while r.engine.scheduler.next_prefill is None:
            r.engine.step()
        r.events.extend(r.engine.step())
        r.engine.abort(name, "disconnect")
        r.run()
        assert r.done(name).finish_reason == "disconnect"
        assert r.engine.pool.free_share == 1.0
        tier.release()
        tokens, report = r.answer(PIE)  # after it on the loader's threads
    assert tokens and [d.tier for d in report.documents] == ["slow"] * 3
    assert all(count <= 1 + model.decoder.layers for count in tier.reads.values())


def test_two_requests_for_one_chunk_share_one_read(model: Tiny) -> None:
    tier = Events()
    with streaming_rig(model, tier) as r:
        alone, _ = r.answer(A3)
        tier.reads.clear()
        tier.block("read_ranges")
        requests = [r.submit(A3), r.submit(PIE, [*DOCUMENTS[1:], DOCUMENTS[1]]), r.submit(A3)]
        while not all(s.loaded for s in r.engine.scheduler.active):
            r.events.extend(r.engine.step())
        tier.release()
        r.run()
        reports = [r.done(name).report for name in requests]
    assert r.tokens(requests[0]) == r.tokens(requests[2]) == alone
    assert set(tier.reads.values()) == {model.decoder.layers}
    assert all(d.tier == "slow" for report in reports for d in report.documents)


def test_a_prompt_that_waits_lets_others_pass(model: Tiny) -> None:
    """Neither a load under way nor the prompt that waits for it holds up a prompt in memory."""
    slow = Events()
    with streaming_rig(model, slow) as r:
        slow.block("read_ranges")
        first = r.submit(A3)
        while (
            r.engine.scheduler.next_prefill is None or not r.engine.scheduler.next_prefill.blocked
        ):
            r.events.extend(r.engine.step())
        second = r.submit(VANILLA, [])
        while not any(getattr(e, "id", "") == second for e in r.events):
            r.events.extend(r.engine.step())
        assert not r.tokens(first)
        assert r.engine.scheduler.next_prefill is not None
        slow.release()
        r.run()
        assert r.done(first).report.stages["load"] > 0
        assert [d.tier for d in r.done(first).report.documents] == ["slow"] * 3
