"""A forecast agrees with the request's later report, and making it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvstitch.kvstore import MemoryTier
from kvstitch.service.errors import UnknownMethod
from kvstitch.service.messages.replies import Explained
from kvstitch.service.messages.reports import Forecast
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method
from kvstitch.service.worker.methods.registry import fusion_methods
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, Rig, disk, rig
from tests.service.worker.tiny import Q, S, Tiny

pytestmark = pytest.mark.exhaustive


def explained(
    r: Rig, fusion: Method = PIE, documents: Sequence[ChunkTokens] = DOCUMENTS, **fields: object
) -> Forecast:
    r.engine.explain(Generate("dry", S, documents, Q, fusion, **fields))  # type: ignore[arg-type]
    while True:
        for event in r.engine.step():
            assert isinstance(event, Explained) and event.id == "dry", event
            return event.forecast


def time_again(r: Rig) -> None:
    """As on a machine that did not stand still while it was timed."""
    for _ in range(60):
        for flops in (1e6, 1e9):
            r.engine.planner.compute.add(flops, 1e-6 + flops * 1e-9)


def test_nothing_stored_is_a_full_prefill(model: Tiny) -> None:
    with rig(model) as r:
        forecast = explained(r)
        assert [d.tier for d in forecast.documents] == ["cold"] * 3
        assert {d.action for d in [forecast.system, *forecast.documents]} == {"recompute"}
        assert forecast.recomputed_tokens == forecast.prompt_tokens
        assert forecast.flops == pytest.approx(forecast.full_prefill_flops, rel=0.01)
        assert not forecast.measured
        assert r.store.stats().new_keys == 0 and r.engine.scheduler.idle


def test_the_tier_of_every_document_and_its_bytes(model: Tiny, tmp_path: Path) -> None:
    """As the run reports them; asking moves nothing into a faster tier."""
    with rig(model, tiers=[MemoryTier(1 << 24), disk(tmp_path)]) as r:
        r.precompute(DOCUMENTS[:2])
    with rig(model, tiers=[MemoryTier(1 << 24), disk(tmp_path)]) as r:
        forecast = explained(r)
        assert [d.tier for d in forecast.documents] == ["ssd", "ssd", "cold"]
        assert explained(r) == forecast
        assert [d.chunk_id for d in forecast.documents] == [d.chunk_id for d in DOCUMENTS]
        assert all(d.load_s > 0 for d in forecast.documents[:2])
        _, report = r.answer(PIE)
        for before, then in zip(forecast.documents[:2], report.documents[:2], strict=True):
            assert before.load_bytes == before.stored_bytes
            assert 0 <= then.bytes - before.load_bytes < 2048, "the container's header"
        assert report.documents[2].bytes == forecast.documents[2].load_bytes == 0
        assert forecast.recomputed_tokens == report.recomputed_tokens
        after = explained(r)
        assert [d.tier for d in after.documents] == ["memory"] * 3
        assert [d.load_s for d in after.documents] == [0.0] * 3


@pytest.mark.parametrize("name", sorted(fusion_methods()))
def test_operations_are_about_those_of_the_run(any_family: Tiny, name: str) -> None:
    """Every method; a dry run counts rows, it does not choose them."""
    with rig(any_family) as r:
        r.precompute()
        forecast = explained(r, Method(name))
        _, report = r.answer(Method(name))
        assert forecast.full_prefill_flops == report.full_prefill_flops
        assert forecast.flops == pytest.approx(report.flops, rel=0.25)
        assert forecast.flops <= forecast.full_prefill_flops


def test_what_was_timed_is_expected_again(model: Tiny) -> None:
    with rig(model) as r:
        r.precompute()
        r.answer(VANILLA)
        r.answer(A3)
        assert explained(r, A3).measured
        time_again(r)
        forecast = explained(r, A3)
        assert 0 < forecast.first_token_s < forecast.full_prefill_s


def test_what_cannot_be_answered_cannot_be_explained(model: Tiny) -> None:
    with rig(model) as r, pytest.raises(UnknownMethod):
        explained(r, Method("magic"))


def test_a_kept_prompt_is_known(model: Tiny) -> None:
    """What a continued prompt would reuse, as the run reports it; asking keeps nothing longer."""
    with rig(model, prefix_cache=True, pool_tokens=1000) as r:
        r.precompute(DOCUMENTS)
        fresh = explained(r)
        assert fresh.reused_tokens == 0 and all(d.reused == 0 for d in fresh.documents)
        r.answer(PIE)
        time_again(r)
        same = explained(r)
        assert same.reused_tokens == same.prompt_tokens and same.recomputed_tokens == 0
        assert same.flops == 0 and same.first_token_s < 0.01 * same.full_prefill_s
        assert {d.action for d in [same.system, *same.documents]} == {"reuse"}
        assert {d.tier for d in same.documents} == {"pool"}
        other = explained(r, VANILLA)  # PIE's is not exact
        assert other.reused_tokens == 0
        r.answer(VANILLA)
        longer = [*DOCUMENTS, DOCUMENTS[0]]
        forecast = explained(r, VANILLA, longer)
        _, report = r.answer(VANILLA, longer)
        assert forecast.reused_tokens == report.reused_tokens > 0
        assert [d.action for d in forecast.documents] == [*["reuse"] * 3, "recompute"]
        assert forecast.flops == pytest.approx(report.flops, rel=0.01)
