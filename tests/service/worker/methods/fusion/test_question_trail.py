"""Question trail against its reference: seeds, scores, and rows started and continued."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from service.worker.core.flops import full_prefill
from service.worker.core.layer_view import LayerView
from service.worker.forward.prefill import prefill
from service.worker.methods.fusion.pie import Method as Pie
from service.worker.methods.fusion.question_scout import Method as QuestionScout
from service.worker.methods.fusion.question_trail import Method as QuestionTrail
from tests.references.trail import trail
from tests.service.worker.methods.fusion.rows import document_rows
from tests.service.worker.tiny import D1, D2, D3, EDGES, Q, S, Tiny, assert_close, assert_same

IDS = [*S, *D1, *D2, *D3, *Q]
CACHED = [name for name, (_, _, uncached) in EDGES.items() if not uncached]


def views(model: Tiny, method: QuestionTrail, **changes: Any) -> list[LayerView]:
    """What the method was shown at every layer."""
    run = model.stitch(Pie())
    seen: list[LayerView] = []
    cached = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    steps = prefill(model.adapter, run.layout, cached, method, run.sequence, capture=seen.append)
    for _ in steps:
        pass
    return seen


def documents_of(view: LayerView) -> list[int]:
    return [t for t in view.rows.tolist() if len(S) <= t < len(IDS) - len(Q)]


@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.4, 0.7])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"leads": 0.0},
        {"leads": 1.0},
        {"breadth": 1.0, "edge": 0},
        {"sure": 0.0},
        {"from_depth": 0.9},
    ],
)
def test_is_the_reference(any_model: Tiny, ratio: float, given: dict[str, Any]) -> None:
    """Rows, logits and KV at every layer."""
    expected = trail(any_model.reference, any_model.prompt(), ratio, **given)
    ours = any_model.stitch(QuestionTrail(ratio=ratio, **given))
    assert document_rows(ours) == expected.continued
    assert_same("question trail", ours, expected.trace)


def test_scores_and_rows_by_layer(any_family: Tiny) -> None:
    expected = trail(any_family.reference, any_family.prompt(), 0.3)
    shown = views(any_family, QuestionTrail(ratio=0.3))
    assert shown[0].attention_scores is not None
    assert_close(
        "trail: scores", shown[0].attention_scores.question, torch.tensor(expected.question_scores)
    )
    assert documents_of(shown[0]) == documents_of(shown[1]) == expected.started
    assert documents_of(shown[2]) == documents_of(shown[-1]) == expected.continued
    assert set(expected.continued) < set(expected.started)


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.3, 0.4])
def test_rows_are_the_ratio_on_average(model: Tiny, ratio: float) -> None:
    """Rounded down at the two places where they are counted."""
    layers = model.adapter.layers
    shown = views(model, QuestionTrail(ratio=ratio))
    attending = [len(documents_of(view)) for view in (shown[0], *shown[2:])]
    mean = (attending[0] + attending[1] * (layers - 1)) / layers
    assert mean <= ratio * len(IDS) + 1e-6
    assert mean > ratio * len(IDS) - 2


def test_following_brings_in_what_seeds_read(any_family: Tiny) -> None:
    """A token's score is the question's plus the seeds', scaled to the same sum; the score of a
    seed is only the question's."""
    with_seeds = trail(any_family.reference, any_family.prompt(), 0.3, leads=0.2)
    without = trail(any_family.reference, any_family.prompt(), 0.3, leads=0.0)
    assert without.seeds == [] and len(with_seeds.seeds) == 2
    for seed in with_seeds.seeds:
        assert with_seeds.total[seed] == without.total[seed]
    stale = range(len(S), len(IDS) - len(Q))
    both, alone = (sum(t.total[i] for i in stale) for t in (with_seeds, without))
    assert both == pytest.approx(2 * alone)


def test_an_exact_first_document_is_left_alone(any_family: Tiny) -> None:
    expected = trail(any_family.reference, any_family.prompt(prefix=S), 0.3, prefix=S)
    ours = any_family.stitch(QuestionTrail(ratio=0.3), prefix=S)
    assert not {*range(len(S), len(S) + len(D1))} & set(document_rows(ours))
    assert_same("question trail, behind S", ours, expected.trace)
    alone = any_family.stitch(QuestionTrail(ratio=0.5), documents=[D1], prefix=S)
    assert document_rows(alone) == []
    assert_same("one document", alone, any_family.reference.vanilla([*S, *D1, *Q]))


@pytest.mark.parametrize("name", CACHED)
def test_edges(any_family: Tiny, name: str) -> None:
    """Orders, repetitions, empty and tiny segments."""
    system, documents, _ = EDGES[name]
    ours = any_family.stitch(QuestionTrail(ratio=0.3), system, documents)
    prompt = any_family.prompt(system, documents)
    assert_same("trail, edges", ours, trail(any_family.reference, prompt, 0.3).trace)


def test_the_ends_of_the_ratio(any_model: Tiny) -> None:
    """None: PIE, and no lead runs. One: full prefill."""
    ours, pie = any_model.stitch(QuestionTrail(ratio=0)), any_model.stitch(Pie())
    assert_close("question trail 0 is pie", ours.logits, pie.logits, 1e-5)
    scout = any_model.stitch(QuestionScout(ratio=0)).result.flops
    assert ours.result.flops < scout  # its question pass ends before the last layer
    expected = any_model.reference.vanilla(IDS)
    assert_same("question trail 1", any_model.stitch(QuestionTrail(ratio=1)), expected)


def test_pauses_after_every_layer_of_every_pass(model: Tiny) -> None:
    run = model.stitch(Pie())
    cached = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    steps = prefill(model.adapter, run.layout, cached, QuestionTrail(ratio=0.3), run.sequence)
    assert sum(1 for _ in steps) == 2 * (model.adapter.layers - 1) + model.adapter.layers


def test_all_uncached_skips_the_passes(model: Tiny) -> None:
    uncached = model.stitch(QuestionTrail(), uncached=[0, 1, 2, 3])
    assert uncached.result.flops == pytest.approx(full_prefill(model.adapter, len(IDS)))
