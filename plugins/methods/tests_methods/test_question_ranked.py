"""The methods of 2026 that rank by the question, against their references."""

from __future__ import annotations

from typing import Any

import pytest

from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch_methods.agentkvshift import AgentKVShift
from kvstitch_methods.question_ranked import FusionRAG, InfoFlow, ProphetKV, RelaxKV, last_layers
from tests.service.worker.methods.fusion.rows import document_rows
from tests.service.worker.tiny import D1, D2, D3, EDGES, Q, S, Tiny, assert_close, assert_same
from tests_methods.question_ranked_reference import (
    agentkvshift,
    document_share,
    question_mass,
    ranked_rows,
    relaxkv,
)

pytestmark = pytest.mark.exhaustive

IDS = [*S, *D1, *D2, *D3, *Q]
CACHED = [name for name, (_, documents, uncached) in EDGES.items() if not uncached]
UNCACHED = [name for name in EDGES if name not in CACHED]
RANKED: list[DenseMethod] = [
    ProphetKV(),
    ProphetKV(probe="stitched"),
    ProphetKV(keys="all"),
    ProphetKV(probe="stitched", keys="all"),
    InfoFlow(),
    InfoFlow(first_layer=0),
    FusionRAG(),
]
EVERY: list[DenseMethod] = [*RANKED, RelaxKV(), RelaxKV(keys="all"), AgentKVShift()]


def expected_rows(model: Tiny, method: DenseMethod, ratio: float, **changes: Any) -> list[int]:
    """By the reference, with the layers as the paper numbers them."""
    prompt, layers = model.prompt(**changes), model.reference.layers
    if isinstance(method, ProphetKV):
        mass = question_mass(model.reference, prompt, probe=method.probe, keys=method.keys)
        return ranked_rows(prompt, mass, range(layers), ratio)
    mass = question_mass(model.reference, prompt)
    if isinstance(method, FusionRAG):
        return ranked_rows(prompt, mass, [layers - 1], ratio)
    # Five layers: 22 to 25 are not there, so the last four; from layer 0 the first four.
    used = range(4) if method == InfoFlow(first_layer=0, ratio=ratio) else range(1, 5)
    return ranked_rows(prompt, mass, used, ratio)


@pytest.mark.parametrize("ratio", [0.15, 0.4])
@pytest.mark.parametrize("method", RANKED, ids=repr)
def test_ranked_is_the_reference(any_model: Tiny, method: DenseMethod, ratio: float) -> None:
    """Rows, logits and KV at every layer."""
    method = method.with_repair_ratio(ratio)
    rows = expected_rows(any_model, method, ratio)
    ours = any_model.stitch(method)
    assert document_rows(ours) == rows
    assert_same("question ranked", ours, any_model.reference.forced_rows(any_model.prompt(), rows))


@pytest.mark.parametrize("method", RANKED, ids=repr)
@pytest.mark.parametrize("name", CACHED)
def test_edges(any_family: Tiny, method: DenseMethod, name: str) -> None:
    """Orders, repetitions, empty and tiny segments, no document at all."""
    system, documents, _ = EDGES[name]
    changes: dict[str, Any] = {"system": system, "documents": documents}
    ours = any_family.stitch(method.with_repair_ratio(0.3), **changes)
    rows = []
    if any(documents):
        rows = expected_rows(any_family, method.with_repair_ratio(0.3), 0.3, **changes)
    assert document_rows(ours) == rows
    expected = any_family.reference.forced_rows(any_family.prompt(**changes), rows)
    assert_same("question ranked, edges", ours, expected)


def test_what_the_question_has_seen_changes_the_ranking(model: Tiny) -> None:
    """The readings of ProphetKV are different methods on one and the same prompt."""
    chosen = {
        tuple(document_rows(model.stitch(method.with_repair_ratio(0.3)))) for method in RANKED[:4]
    }
    assert len(chosen) >= 3


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("keys", ["anchors", "all"])
def test_relaxkv_is_the_reference(any_model: Tiny, ratio: float, keys: str) -> None:
    """The rows of every layer, logits, and KV at every layer."""
    expected = relaxkv(any_model.reference, any_model.prompt(), ratio, keys=keys)
    seen: list[LayerView] = []
    ours = any_model.stitch(RelaxKV(ratio=ratio, keys=keys), capture=seen.append)
    first, last = len(S), len(IDS) - len(Q)
    rows = [[t for t in view.rows.tolist() if first <= t < last] for view in seen]
    assert rows == expected.rows
    assert_same("relaxkv", ours, expected.trace)


def test_relaxkv_computes_more_rows_than_its_ratio(model: Tiny) -> None:
    """Layers pick different tokens: those of all of them start."""
    seen: list[LayerView] = []
    model.stitch(RelaxKV(ratio=0.2), capture=seen.append)
    counts = [len(view.rows) - len(Q) for view in seen]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == document_share(model.prompt(), 0.2)


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.6])
def test_agentkvshift_is_the_reference(any_model: Tiny, ratio: float) -> None:
    """Probes, logits, and the shifted KV of every layer."""
    expected = agentkvshift(any_model.reference, any_model.prompt(), ratio)
    ours = any_model.stitch(AgentKVShift(ratio=ratio))
    assert document_rows(ours) == sorted({*expected.key_probes, *expected.value_probes})
    assert_same("agentkvshift", ours, expected.trace)


def test_agentkvshift_shifts_only_documents_with_a_probe(model: Tiny) -> None:
    """Of one probe of a single vote the ranking by keys has it, so values stay."""
    stored = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    ours = model.stitch(AgentKVShift(ratio=0.05), stored=stored)
    (probe,) = document_rows(ours)
    spans = {len(S): D1, len(S) + len(D1): D2, len(S) + len(D1) + len(D2): D3}
    by_pie = model.stitch(Pie(2), stored=stored)
    moved = set()
    for number, (start, ids) in enumerate(spans.items(), start=1):
        for at in range(len(ids)):
            if start + at == probe:
                continue
            assert ours.v[3][start + at].equal(stored[number].v[3][at])
            if not ours.k[3][start + at].equal(by_pie.k[3][start + at]):
                moved.add(number)
    probed = [
        n for n, (start, ids) in enumerate(spans.items(), 1) if start <= probe < start + len(ids)
    ]
    assert moved == set(probed)


@pytest.mark.parametrize("method", EVERY, ids=repr)
def test_ratio_one_is_full_prefill(any_model: Tiny, method: DenseMethod) -> None:
    ours = any_model.stitch(method.with_repair_ratio(1.0))
    assert_same("ratio 1", ours, any_model.reference.vanilla(IDS))


@pytest.mark.parametrize("method", EVERY, ids=repr)
def test_ratio_zero_is_pie(any_family: Tiny, method: DenseMethod) -> None:
    """AgentKVShift's first two layers are exact before it chooses."""
    exact = 2 if isinstance(method, AgentKVShift) else 0
    ours, pie = any_family.stitch(method.with_repair_ratio(0.0)), any_family.stitch(Pie(exact))
    assert_close("ratio 0 is pie", ours.logits, pie.logits, 1e-5)


@pytest.mark.parametrize("name", UNCACHED)
@pytest.mark.parametrize("method", EVERY[:-1], ids=repr)
def test_uncached_segments_are_computed(any_family: Tiny, method: DenseMethod, name: str) -> None:
    """Their tokens are no candidates and not counted; with all uncached it is a full prefill."""
    system, documents, uncached = EDGES[name]
    ours = any_family.stitch(method.with_repair_ratio(0.3), system, documents, uncached=uncached)
    prompt = any_family.prompt(system, documents, uncached=uncached)
    forced = set(prompt.indices(uncached=True))
    chosen = set(document_rows(ours))
    assert forced - set(range(len(system))) <= chosen
    if not isinstance(method, RelaxKV):
        assert len(chosen - forced) == document_share(prompt, 0.3)
        expected = any_family.reference.forced_rows(prompt, [*chosen, *forced])
        assert_same("question ranked, uncached", ours, expected)


def test_layers_of_a_model_that_has_fewer() -> None:
    assert last_layers(32, 22, 4) == range(22, 26)
    assert last_layers(26, 22, 4) == range(22, 26)
    assert last_layers(24, 22, 4) == range(20, 24)
    assert last_layers(3, 22, 4) == range(3)
