"""Question scout against the reference: the question pass, the chosen rows, the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from kvstitch.service.worker.forward.kv_placement import KVPlacer
from kvstitch.service.worker.forward.prefill import Progress, PromptLoop, prefill
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import RowWeights
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.question_scout import Method as QuestionScout
from kvstitch.service.worker.model.model_facts import full_prefill
from kvstitch.service.worker.steps import run as finished
from tests.references.fusion import always_computed, share
from tests.references.question_scout import Scout, attention_scores, question_scout, scout_rows
from tests.references.shift import shifted_pass
from tests.service.worker.methods.fusion.rows import document_rows
from tests.service.worker.tiny import D1, D2, D3, EDGES, Q, S, Tiny, assert_close, assert_same

pytestmark = pytest.mark.exhaustive

IDS = [*S, *D1, *D2, *D3, *Q]
UNCACHED = [name for name, (_, _, uncached) in EDGES.items() if uncached]
CACHED = [name for name in EDGES if name not in UNCACHED]


class FromWeights(QuestionScout):
    """The same scores, from the weights themselves, of all layers but one."""

    left_out: ClassVar[int] = -1

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        def score(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
            if layer == self.left_out:
                return None
            by_row = weights.sum(0)
            return by_row[-1] + by_row.mean(0) * self.question

        return score


def question_scores(
    model: Tiny, method: QuestionScout | None = None, **changes: object
) -> torch.Tensor:
    """Summed scores of the question pass alone."""
    run = model.stitch(Pie(), **changes)  # type: ignore[arg-type]
    uncached = [s.uncached for s in run.layout.segments]
    segments = [S, D1, D2, D3]
    cached = [
        None if c else model.precompute(ids) for ids, c in zip(segments, uncached, strict=True)
    ]
    method = method or QuestionScout(from_depth=0, to_depth=1)
    positions = method.key_positions(run.layout)
    loop = PromptLoop(
        decoder=model.decoder,
        layout=run.layout,
        cached=cached,
        kv=run.sequence,
        placer=KVPlacer(model.decoder, run.layout, cached, positions, run.sequence),
        eviction=None,
        capture=None,
        on_pass=None,
        arrival=None,
        progress=Progress(),
    )
    return finished(method.attention_scores(loop)).sum(0)


def test_scores_are_the_questions_attention_in_a_pie_pass(any_model: Tiny) -> None:
    """The last row's and twice the mean row's, summed over layers and heads."""
    expected = torch.tensor(attention_scores(any_model.reference, any_model.prompt())).sum(0)
    assert_close("question scout: scores", question_scores(any_model), expected)


def test_a_method_may_look_at_the_weights(
    any_family: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And may give no scores in a layer."""
    whole = question_scores(any_family, uncached=[2])
    assert_close(
        "from weights",
        question_scores(any_family, FromWeights(from_depth=0, to_depth=1), uncached=[2]),
        whole,
    )
    monkeypatch.setattr(FromWeights, "left_out", 1)
    less = question_scores(any_family, FromWeights(from_depth=0, to_depth=1), uncached=[2])
    heads, layers = any_family.decoder.heads, any_family.decoder.layers
    assert float(less.sum()) == pytest.approx(3 * heads * (layers - 1), rel=1e-5)


def test_uncached_segments_are_not_seen(any_family: Tiny) -> None:
    """Their keys do not exist in the question pass: nothing is read there, and every question
    row's weights still add up to one."""
    found = question_scores(any_family, uncached=[2])
    assert torch.isfinite(found).all()
    assert found[18:24].eq(0).all()
    heads = any_family.decoder.layers * any_family.decoder.heads
    assert float(found.sum()) == pytest.approx(3 * heads, rel=1e-5)


@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.4, 0.6])
@pytest.mark.parametrize("shift", [0, 0.25, 1])
def test_is_the_reference(any_model: Tiny, ratio: float, shift: float) -> None:
    """Rows, logits and KV at every layer."""
    prompt, scout = any_model.prompt(), Scout(ratio, shift=shift)
    ours = any_model.stitch(QuestionScout(ratio=ratio, shift=shift))
    assert document_rows(ours) == scout_rows(any_model.reference, prompt, scout)
    assert_same("question scout", ours, question_scout(any_model.reference, prompt, scout))


@pytest.mark.parametrize(
    ("depths", "layers"),
    [
        ((0.0, 1.0), range(5)),
        ((0.4, 0.6), [2]),
        ((0.5, 0.5), [1]),
        ((1.0, 1.0), [4]),
        ((0, 0), [0]),
        ((0.8, 0.4), [1]),
    ],
)
@pytest.mark.parametrize("question", [0, 0.5, 100])
def test_layers_and_rows_that_count(
    any_family: Tiny, depths: tuple[float, float], layers: Sequence[int], question: float
) -> None:
    """At least one layer counts, however the depths are."""
    method = QuestionScout(ratio=0.3, question=question, from_depth=depths[0], to_depth=depths[1])
    scout = Scout(0.3, layers, question)
    ours = any_family.stitch(method)
    prompt = any_family.prompt()
    assert document_rows(ours) == scout_rows(any_family.reference, prompt, scout)
    assert_same("question scout, layers", ours, question_scout(any_family.reference, prompt, scout))


def test_an_exact_first_document_is_left_alone(any_family: Tiny) -> None:
    """Precomputed behind S it is full prefill's: no row is spent on it, it is not shifted, and with
    one document alone nothing is recomputed."""
    run = any_family.stitch(QuestionScout(ratio=0.3), prefix=S)
    assert not {*range(len(S), len(S) + len(D1))} & set(document_rows(run))
    assert len(document_rows(run)) == share(0.3, len(IDS))
    prompt = any_family.prompt(prefix=S)
    expected = question_scout(any_family.reference, prompt, Scout(0.3), S)
    assert_same("question scout, behind S", run, expected)
    alone = any_family.stitch(QuestionScout(ratio=0.5), documents=[D1], prefix=S)
    assert document_rows(alone) == []
    assert_same("one document", alone, any_family.reference.vanilla([*S, *D1, *Q]))


def test_a_document_without_a_computed_token_is_not_shifted(model: Tiny) -> None:
    stored = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    ours = model.stitch(QuestionScout(ratio=0.03, shift=1), stored=stored)
    (row,) = document_rows(ours)
    start = len(S)
    for number, ids in enumerate((D1, D2, D3), start=1):
        inside = range(start, start + len(ids))
        others = [t for t in inside if t != row]
        same = ours.v[3][others].equal(stored[number].v[3][[t - start for t in others]])
        assert same == (row not in inside)
        start += len(ids)


def test_ratio_zero_is_pie(any_model: Tiny) -> None:
    ours, pie = any_model.stitch(QuestionScout(ratio=0)), any_model.stitch(Pie())
    assert_close("question scout 0 is pie", ours.logits, pie.logits, 1e-5)


def test_ratio_one_is_full_prefill(any_model: Tiny) -> None:
    expected = any_model.reference.vanilla(IDS)
    assert_same("question scout, ratio 1", any_model.stitch(QuestionScout(ratio=1)), expected)


@pytest.mark.parametrize("name", CACHED)
def test_edges(any_family: Tiny, name: str) -> None:
    """Orders, repetitions, empty and tiny segments."""
    system, documents, uncached = EDGES[name]
    ours = any_family.stitch(QuestionScout(ratio=0.3), system, documents, uncached=uncached)
    prompt = any_family.prompt(system, documents, uncached=uncached)
    expected = question_scout(any_family.reference, prompt, Scout(0.3))
    assert_same("question scout, edges", ours, expected)


@pytest.mark.parametrize("name", UNCACHED)
def test_uncached_segments_are_computed_and_not_counted(any_family: Tiny, name: str) -> None:
    """The second pass computes them with the chosen rows, exactly as any forced rows."""
    system, documents, uncached = EDGES[name]
    ours = any_family.stitch(QuestionScout(ratio=0.3), system, documents, uncached=uncached)
    prompt = any_family.prompt(system, documents, uncached=uncached)
    chosen = document_rows(ours)
    forced = set(prompt.indices(uncached=True))
    assert forced - set(range(len(system))) <= set(chosen)
    candidates = len(prompt.indices(uncached=False, documents_only=True))
    wanted = min(candidates, share(0.3, len(prompt.ids)))
    rows = sorted(set(chosen) - forced)
    assert len(rows) == wanted
    weights = [0.0] * len(prompt.ids)
    for t in prompt.indices(uncached=False, documents_only=True):
        weights[t] = 0.25
    every = sorted({*rows, *always_computed(prompt)})
    expected = shifted_pass(any_family.reference, prompt, every, (rows, rows), (weights, weights))
    assert_same("question scout, uncached", ours, expected)


def test_pauses_after_every_layer_of_both_passes(model: Tiny) -> None:
    run = model.stitch(Pie())
    cached = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    steps = prefill(model.decoder, run.layout, cached, QuestionScout(), run.sequence)
    assert sum(1 for _ in steps) == 4 + model.decoder.layers  # the first pass ends after layer 3


def test_all_uncached_skips_the_question_pass(model: Tiny) -> None:
    uncached = model.stitch(QuestionScout(), uncached=[0, 1, 2, 3])
    layers = model.decoder.layers
    assert uncached.result.flops == pytest.approx(full_prefill(model.decoder, len(IDS)))
    assert uncached.result.rows_per_layer == [len(IDS)] * (layers - 1) + [1]
