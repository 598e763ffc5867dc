"""`cold: as_stored`: an answer is the same before and after its chunks were stored, whatever was
missing, and no chunk is computed twice."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from kvstitch.kvstore import MemoryTier
from kvstitch.service.messages.replies import Explained
from kvstitch.service.messages.reports import Forecast, Report
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method
from kvstitch.service.worker.loading import chunk_stream
from kvstitch.service.worker.loading.planner import LATE
from kvstitch.service.worker.methods.registry import fusion_methods
from tests.service.worker.engine.test_engine_faults import chunk_file
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, Rig, disk, rig
from tests.service.worker.gate.gated_engine import ALL, check, values
from tests.service.worker.loading.test_precompute_queue import DOCUMENTS as FOUR
from tests.service.worker.loading.test_precompute_queue import PURGED, busy_rounds, purge, stored
from tests.service.worker.loading.test_streaming import Events, keys, streaming_rig
from tests.service.worker.tiny import D1, D3, Q, S, Tiny

pytestmark = pytest.mark.exhaustive

FUSING = sorted(set(fusion_methods()) - {"vanilla"})
HOW = [
    *((name, mode) for name in FUSING for mode in ("none", "system")),
    ("pie", "bos"),
    ("question_scout", "bos_keep"),
]
SAMKV = Method("samkv")


def facts(r: Rig, name: str) -> tuple[list[int], list[object]]:
    """Tokens and their log-probabilities, to the last bit."""
    return r.tokens(name), list(r.logprobs(name))


def ask(
    r: Rig, fusion: Method, documents: list[ChunkTokens] = DOCUMENTS, mode: str = "none"
) -> str:
    name = r.submit(fusion, documents, prefix_mode=mode, logprobs=5, cold="as_stored", max_tokens=9)
    r.run()
    return name


def how(report: Report) -> list[str]:
    return [segment.computed for segment in (report.system, *report.documents)]


@pytest.mark.parametrize("codec", ["raw", "int8"])
@pytest.mark.parametrize(("name", "mode"), HOW)
def test_the_first_answer_is_every_later_one(model: Tiny, name: str, mode: str, codec: str) -> None:
    method = Method(name)
    with rig(model, codec=codec) as r:
        first = ask(r, method, mode=mode)
        assert r.store.stats().new_keys == 4
        counts = dict(r.engine.precompute_queue.counts)
        second = ask(r, method, mode=mode)
        assert (
            counts == r.engine.precompute_queue.counts == {"stored": 4, "present": 0, "failed": 0}
        )
        cold, warm = r.done(first).report, r.done(second).report
        assert facts(r, first) == facts(r, second)
    assert how(cold) == ["as_stored"] * 4 and how(warm) == [""] * 4
    assert [d.tier for d in cold.documents] == ["cold"] * 3
    assert [d.rows_recomputed for d in cold.documents] == [
        d.rows_recomputed for d in warm.documents
    ]
    assert (cold.cached_tokens, cold.recomputed_ratio) == (0, 1.0)
    assert cold.recomputed_tokens == cold.prompt_tokens and cold.flops > warm.flops
    with rig(model, codec=codec) as r:  # and what precompute has stored is the same
        r.precompute(prefix_mode=mode)
        again = ask(r, method, mode=mode)
        assert facts(r, again)[0] and r.done(again).report.flops == warm.flops
        assert facts(r, again) == facts(r, ask(r, method, mode=mode))


@pytest.mark.parametrize("method", [PIE, A3, SAMKV], ids=lambda m: m.name)
@pytest.mark.parametrize("known", [c for n in (0, 1, 2) for c in combinations(range(3), n)])
def test_it_is_the_same_whatever_was_missing(
    model: Tiny, method: Method, known: tuple[int, ...]
) -> None:
    with rig(model) as r:
        r.precompute()
        expected = facts(r, ask(r, method))
    with rig(model) as r:
        r.precompute([DOCUMENTS[i] for i in known])
        name = ask(r, method)
        assert facts(r, name) == expected
        report = r.done(name).report
    assert how(report)[1:] == ["" if i in known else "as_stored" for i in range(3)]
    missing = sum(len(DOCUMENTS[i].ids) for i in range(3) if i not in known)
    assert report.recomputed_ratio >= missing / sum(len(d.ids) for d in DOCUMENTS)


def test_otherwise_it_can_change(model: Tiny) -> None:
    """Which is what the mode is for."""
    with rig(model) as r:
        first = r.submit(PIE, logprobs=5)
        r.run()
        second = r.submit(PIE, logprobs=5)
        r.run()
        assert facts(r, first) != facts(r, second)
        assert how(r.done(first).report) == ["in_context"] * 4


def test_full_prefill_stores_nothing(model: Tiny) -> None:
    with rig(model) as r:
        tokens, report = r.answer(VANILLA, cold="as_stored")
        assert tokens == r.answer(VANILLA)[0] and r.store.stats().new_keys == 0
    assert how(report) == ["in_context"] * 4


@pytest.mark.parametrize("method", [PIE, SAMKV], ids=lambda m: m.name)
def test_requests_that_come_together_compute_a_document_once(model: Tiny, method: Method) -> None:
    with rig(model) as r:
        names = [r.submit(method, logprobs=5, cold="as_stored") for _ in range(4)]
        r.run()
        first, *others = [r.done(name).report for name in names]
        # Tokens alone: how many of them decode together, and so the rounding, depends on timing.
        assert len({str(facts(r, name)[0]) for name in names}) == 1
    assert how(first) == ["as_stored"] * 4
    assert all(how(report)[1:] == [""] * 3 for report in others)
    assert all(d.tier == "memory" for report in others for d in report.documents)


def test_a_document_that_stands_there_twice_is_computed_once(model: Tiny) -> None:
    twice = [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0], ChunkTokens(9, [])]
    with rig(model) as r:
        first = ask(r, PIE, twice)
        assert r.engine.precompute_queue.counts["stored"] == 3
        assert how(r.done(first).report) == ["as_stored"] * 4 + [""]
        assert facts(r, first) == facts(r, ask(r, PIE, twice))


@pytest.mark.parametrize("method", [PIE, A3, SAMKV], ids=lambda m: m.name)
def test_a_damaged_chunk_changes_nothing(model: Tiny, tmp_path: Path, method: Method) -> None:
    with rig(model, tiers=[disk(tmp_path)]) as r:
        r.precompute()
        assert r.store.flush(20)
        expected = facts(r, ask(r, method))
        file = chunk_file(tmp_path, r, 2)
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(data)
        name = ask(r, method)
        report = r.done(name).report
        assert facts(r, name) == expected == facts(r, ask(r, method))
    assert how(report) == ["", "", "as_stored", ""]
    assert report.documents[1].problems == ["ssd: corrupt"]


@pytest.mark.parametrize("method", [PIE, A3, Method("question_scout")], ids=lambda m: m.name)
def test_a_load_that_is_given_up_changes_nothing(
    model: Tiny, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    monkeypatch.setattr(chunk_stream, "PART_BYTES", 1)  # every layer is read by itself
    tier = Events()
    with streaming_rig(model, tier, planner=True) as r:
        expected = facts(r, ask(r, method))
        tier.at[keys(r)[1]] = {tier.reads.get(keys(r)[1], 0) + 3: lambda: tier.block("read_ranges")}
        name = r.submit(method, logprobs=5, cold="as_stored", max_tokens=9)
        while not any(getattr(e, "id", "") == name for e in r.events):
            r.events.extend(r.engine.step())
        tier.release()
        r.run()
        report = r.done(name).report
        assert facts(r, name) == expected
    given_up = [d for d in report.documents if d.plan == "recompute"]
    assert report.documents[1] in given_up
    assert all(d.why == LATE and d.computed == "as_stored" for d in given_up)


@pytest.mark.parametrize("method", [PIE, SAMKV], ids=lambda m: m.name)
@pytest.mark.parametrize("moment", range(0, 48, 6))
def test_purged_at_any_moment_it_stays_away(model: Tiny, method: Method, moment: int) -> None:
    with rig(model) as r:
        r.submit(method, FOUR, cold="as_stored")
        busy_rounds(r, moment)
        purge(r)
        r.run()
        assert stored(r) == [number for number in range(5) if number != PURGED]


def test_an_aborted_prompt_gives_everything_back(model: Tiny) -> None:
    with rig(model) as r:
        name = r.submit(PIE, cold="as_stored")
        while r.engine.scheduler.next_prefill is None:
            r.engine.step()
        r.events.extend(r.engine.step())
        r.engine.abort(name, "disconnect")
        r.run()
        assert r.done(name).finish_reason == "disconnect"
        assert r.engine.pool.free_share == 1.0
        again, later = ask(r, PIE), ask(r, PIE)
        assert facts(r, again) == facts(r, later)


def test_the_gate_checks_it(model: Tiny) -> None:
    """It is as lossy as a later answer; one in context is full prefill's own."""
    for cold, checks in (("in_context", 0), ("as_stored", 1)):
        with rig(model, checks=ALL) as r:
            r.answer(PIE, cold=cold)
            check(r)
            counted = values(r)
        made = sum(v for key, v in counted.items() if key[0] == "kvstitch_gate_checks_total")
        assert made == checks


def test_what_was_computed_for_tokens_is_told(model: Tiny) -> None:
    with rig(model) as r:
        _, report = r.answer(A3, cold="as_stored", token_fates=True)
    assert report.token_fates is not None
    for document, fates in zip(report.documents, report.token_fates.documents, strict=True):
        assert sum(run.tokens for run in fates.runs if run.recomputed) == document.rows_recomputed
        assert fates.scores is not None


# -- what it would take ---------------------------------------------------------------------------


def explained(r: Rig, fusion: Method, documents: list[ChunkTokens] = DOCUMENTS) -> Forecast:
    r.engine.explain(
        Generate("dry", S, documents, Q, fusion, prefix_mode="system", cold="as_stored")
    )
    while True:
        for event in r.engine.step():
            assert isinstance(event, Explained), event
            return event.forecast


@pytest.mark.parametrize("name", sorted(fusion_methods()))
@pytest.mark.parametrize("stored_documents", [0, 2, 3])
def test_a_forecast_is_about_the_run(model: Tiny, name: str, stored_documents: int) -> None:
    with rig(model) as r:
        if stored_documents:
            r.precompute(DOCUMENTS[:stored_documents], prefix_mode="system")
        forecast = explained(r, Method(name))
        _, report = r.answer(Method(name), prefix_mode="system", cold="as_stored")
    assert forecast.flops == pytest.approx(report.flops, rel=0.25)
    assert forecast.recomputed_tokens == pytest.approx(report.recomputed_tokens, abs=2)
    told = [segment.computed for segment in (forecast.system, *forecast.documents)]
    assert told == how(report)


def test_nothing_stored_takes_longer_than_a_full_prefill_and_is_said_to(model: Tiny) -> None:
    """Behind S it computes S for every document, and then the prompt."""
    with rig(model, tiers=[MemoryTier(1 << 24)]) as r:
        forecast = explained(r, A3, [ChunkTokens(1, D1 * 2), ChunkTokens(2, D3)])
    assert forecast.flops > forecast.full_prefill_flops
    assert forecast.first_token_s > forecast.full_prefill_s
