"""Token traces against the report, the cache and the method's choice."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvstitch.kvstore import MemoryTier
from kvstitch.service.messages.reports import Report, SegmentTrace
from kvstitch.service.messages.requests import ChunkTokens, Method
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.registry import eviction_methods, fusion_methods, make_fusion
from kvstitch.service.worker.sequences.token_trace import TokenTracer
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, disk, rig
from tests.service.worker.tiny import Q, S, Tiny, random_model, tiny_config, tiny_of

pytestmark = pytest.mark.exhaustive

DENSE = sorted(name for name, cls in fusion_methods().items() if cls.reads is not Reads.PARTS)
# headkv needs the head scores of a calibrated model; it gathers like the others.
EVICTIONS = [None, *sorted(set(eviction_methods()) - {"headkv"})]
HALF: dict[str, object] = {"ratio": 0.5}


def segments(report: Report) -> list[SegmentTrace]:
    assert report.token_fates is not None
    return [report.token_fates.system, *report.token_fates.documents, report.token_fates.question]


def check(report: Report) -> None:
    """Every count of the report is the sum of what is said of its tokens."""
    fates = report.token_fates
    assert fates is not None
    reports = [report.system, *report.documents]
    *cached, question = segments(report)
    for segment, runs in zip(reports, cached, strict=True):
        assert sum(run.tokens for run in runs.runs) == segment.tokens
        recomputed = sum(run.tokens for run in runs.runs if run.recomputed)
        assert recomputed == segment.rows_recomputed
        assert runs.scores is None or len(runs.scores) == segment.tokens
    assert sum(run.tokens for run in question.runs) == len(Q)
    every = [run for segment in segments(report) for run in segment.runs]
    held = sum(run.tokens * run.entries for run in every)
    # kept_per_layer is a mean over heads.
    assert held == pytest.approx(sum(report.kept_per_layer) * fates.kv_heads)
    some = sum(run.tokens for run in every if run.entries)
    assert some / report.prompt_tokens == pytest.approx(report.coverage)
    assert all(0 <= run.computed_layers <= fates.layers for run in every)
    assert all(0 <= run.entries <= fates.layers * fates.kv_heads for run in every)


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("fusion", DENSE)
def test_counts_are_the_reports(model: Tiny, fusion: str, eviction: str | None) -> None:
    """For every method and eviction, with one document of three uncached."""
    parameters = HALF if fusion_methods()[fusion].repair_parameter() else {}
    evicting = Method(eviction, {"budget": 20}) if eviction else None
    with rig(model) as r:
        r.precompute(DOCUMENTS[:2])
        _, report = r.answer(Method(fusion, parameters), eviction=evicting, token_fates=True)
    check(report)
    entries = [run.entries for s in segments(report) for run in s.runs]
    assert (min(entries) < max(entries)) == (evicting is not None)


def test_counts_of_a_sparse_method_are_the_reports(tmp_path: Path) -> None:
    model = tiny_of(random_model(tiny_config("llama", max_position_embeddings=2048)))
    source = random.Random(11)
    texts = [[source.randrange(2, 101) for _ in range(length)] * 12 for length in (47, 36, 41)]
    documents = [ChunkTokens(i, text) for i, text in enumerate(texts)]
    with rig(model, tiers=[disk(tmp_path)], pool_tokens=2000) as r:
        r.precompute(documents)
        _, report = r.answer(Method("samkv"), documents, token_fates=True)
    assert [d.tier for d in report.documents] == ["ssd"] * 3
    check(report)
    left_out = [run for s in segments(report) for run in s.runs if not run.entries]
    assert left_out and not any(run.recomputed for run in left_out)


@pytest.mark.parametrize("fusion", ["a3", "cacheblend", "legolink", "question_scout", "pie"])
def test_computed_layers_are_those_where_the_cache_changed(model: Tiny, fusion: str) -> None:
    """The filled cache beside that of mere reuse: KV differs just where it is said that it was
    computed. The first layer's does not depend on other tokens."""
    changed_layers(model, make_fusion(fusion, _small(fusion)))


def changed_layers(model: Tiny, method: FusionMethod) -> None:
    layers = model.decoder.layers
    trace = TokenTracer(method, layers, model.decoder.kv_heads)
    ours = model.stitch(method, capture=trace.capture, on_pass=trace.on_pass)
    trace.prefilled(ours.layout, ours.result)
    reused = model.stitch(Pie())
    fates = trace.report()
    assert fates is not None
    runs = [r for s in (fates.system, *fates.documents, fates.question) for r in s.runs]
    computed = torch.tensor([r.computed_layers for r in runs for _ in range(r.tokens)])
    changed = torch.zeros(ours.layout.question_start, dtype=torch.long)
    for layer in range(1, layers):
        gap = (ours.k[layer] - reused.k[layer]).abs() + (ours.v[layer] - reused.v[layer]).abs()
        changed += (gap.amax((1, 2)) > 1e-5)[: ours.layout.question_start].long()
    first, last = len(S), ours.layout.question_start
    assert changed[first:last].tolist() == (computed[first:last] - 1).clamp(min=0).tolist()
    assert set(computed[last:].tolist()) == {layers}


def _small(fusion: str) -> dict[str, object]:
    if fusion == "legolink":
        return {"first": 2, "last": 1}
    if fusion == "question_scout":
        return {**HALF, "shift": 0.0}  # what is shifted differs too, and is not computed
    return HALF if fusion_methods()[fusion].repair_parameter() else {}


@pytest.mark.parametrize(
    ("fusion", "parameters"),
    [
        ("a3", {}),
        ("a3", {"selection_layer": 3}),
        ("cacheblend", {}),
        ("cacheblend", {"metric": "K"}),
        ("question_scout", {}),
        ("infoflow", {}),
    ],
)
def test_what_was_recomputed_scored_best(
    model: Tiny, fusion: str, parameters: dict[str, object]
) -> None:
    with rig(model) as r:
        r.precompute()
        method = Method(fusion, {"ratio": 0.3, **parameters})
        _, report = r.answer(method, token_fates=True)
    assert report.token_fates is not None
    scored: list[tuple[float, bool]] = []
    for segment in report.token_fates.documents:
        assert segment.scores is not None
        flags = [run.recomputed for run in segment.runs for _ in range(run.tokens)]
        scored += zip(segment.scores, flags, strict=True)
    chosen = [score for score, recomputed in scored if recomputed]
    assert 0 < len(chosen) < len(scored)
    assert min(chosen) >= max(score for score, recomputed in scored if not recomputed)
    assert report.token_fates.system.scores is None and report.token_fates.question.scores is None


@pytest.mark.parametrize("fusion", DENSE)
def test_looking_changes_nothing(model: Tiny, fusion: str) -> None:
    """Same tokens, same counts, same work as without; and none unless it is asked for."""
    requested = Method(fusion, HALF if fusion_methods()[fusion].repair_parameter() else {})
    evicting = Method("snapkv", {"budget": 20})
    with rig(model) as r:
        r.precompute()
        plain, without = r.answer(requested, eviction=evicting)
        looked, report = r.answer(requested, eviction=evicting, token_fates=True)
    assert without.token_fates is None
    assert looked == plain

    def lasting(whole: Report) -> Report:
        still = [replace(s, load_s=0.0) for s in (whole.system, *whole.documents)]
        timeless = replace(whole, stages={}, hidden_load_s=0.0, token_fates=None)
        return replace(timeless, system=still[0], documents=still[1:])

    assert lasting(report) == lasting(without)


def test_full_prefill_and_mere_reuse(model: Tiny) -> None:
    """The two ends: everything computed at every layer, nothing but the question."""
    layers = model.decoder.layers
    with rig(model) as r:
        r.precompute()
        _, full = r.answer(VANILLA, token_fates=True)
        _, reuse = r.answer(PIE, token_fates=True)
    assert {run.computed_layers for s in segments(full) for run in s.runs} == {layers}
    *cached, question = segments(reuse)
    assert {run.computed_layers for s in cached for run in s.runs} == {0}
    assert [run.computed_layers for run in question.runs] == [layers]


def test_an_answer_of_one_token_evicts_nothing(model: Tiny) -> None:
    """Eviction comes after the first token; here nothing does."""
    evicting = Method("snapkv", {"budget": 16})
    with rig(model) as r:
        r.precompute()
        _, report = r.answer(A3, eviction=evicting, max_tokens=1, token_fates=True)
    everywhere = model.decoder.layers * model.decoder.kv_heads
    assert {run.entries for s in segments(report) for run in s.runs} == {everywhere}
    assert report.kept_per_layer == []


def test_a_prompt_that_never_ran_says_nothing(model: Tiny) -> None:
    with rig(model, tiers=[MemoryTier(1 << 24)]) as r:
        name = r.submit(A3, token_fates=True)
        r.engine.abort(name, "disconnect")
        r.run()
        assert r.done(name).report.token_fates is None
