"""A3 against the reference (docs/specification.md §1.5, T1, T3, T8)."""

from __future__ import annotations

import math

import pytest
import torch

from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    EDGES,
    Q,
    Run,
    S,
    Tiny,
    assert_close,
    assert_same,
    assert_same_kv,
    random_model,
    tiny_config,
    tiny_of,
)

pytestmark = pytest.mark.exhaustive

RATIOS = [0.05, 0.15, 0.6]


def selected(run: Run) -> list[int]:
    """Document rows that the last layer recomputed."""
    rows = run.result.rows.tolist()
    return [t for t in rows if len(S) <= t < run.layout.question_start]


@pytest.mark.parametrize("ratio", RATIOS)
def test_is_the_reference(any_model: Tiny, ratio: float) -> None:
    """Rows, logits and KV at every layer, at every ratio."""
    prompt = any_model.prompt()
    expected = any_model.reference.a3(prompt, ratio)
    ours = any_model.stitch(A3(ratio=ratio))
    assert selected(ours) == any_model.reference.a3_selected(prompt, ratio)
    assert_same(f"a3, ratio {ratio}", ours, expected)


def test_ratio_one_is_full_prefill(any_model: Tiny) -> None:
    """docs/specification.md T1, against transformers' forward and the reference's KV."""
    ids = [*S, *D1, *D2, *D3, *Q]
    ours = any_model.stitch(A3(ratio=1))
    theirs = any_model.model(torch.tensor([ids])).logits[0, -1]
    assert_close("a3 at ratio 1 is transformers", ours.logits, theirs)
    full = any_model.reference.vanilla(ids)
    assert_close("a3, ratio 1: logits", ours.logits, full.logits[-1])
    assert_same_kv("a3, ratio 1", ours, full)


def test_ratio_zero_is_pie_with_two_exact_layers(any_model: Tiny) -> None:
    """Ours equals ours, and both equal the reference; it is not plain PIE."""
    ours = any_model.stitch(A3(ratio=0))
    pie = any_model.stitch(Pie(exact_layers=2))
    assert_close("a3 at ratio 0 is pie, 2 exact layers", ours.logits, pie.logits)
    expected = any_model.reference.pie(any_model.prompt(), 2)
    assert_same("a3, ratio 0", ours, expected)
    assert float((ours.logits - any_model.stitch(Pie()).logits).abs().max()) > 1e-2


def test_selected_rows_are_those_of_output_attentions(any_family: Tiny) -> None:
    """The same once more without the reference: transformers' own attention weights."""
    run = any_family.stitch(A3(ratio=0.2))
    ids = run.layout.ids
    weights = any_family.model(ids[None], output_attentions=True).attentions[1][0]
    score = weights[:, run.layout.question_start :].sum((0, 1))
    documents = range(len(S), run.layout.question_start)
    best = sorted(documents, key=lambda t: -float(score[t]))[: math.floor(0.2 * len(ids))]
    assert selected(run) == sorted(best)


@pytest.mark.parametrize("layer", [2, 3, 4])
@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_other_selection_layers(any_family: Tiny, layer: int, ratio: float) -> None:
    """Ranked later: more layers exact, the reference still."""
    prompt = any_family.prompt()
    ours = any_family.stitch(A3(ratio=ratio, selection_layer=layer))
    assert selected(ours) == any_family.reference.a3_selected(prompt, ratio, layer)
    assert_same("a3, selection layer", ours, any_family.reference.a3(prompt, ratio, layer))


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_edges(any_family: Tiny, edge: str, ratio: float) -> None:
    """Orders, repetitions, empty, tiny and uncached segments. Uncached rows are not counted."""
    system, documents, uncached = EDGES[edge]
    ours = any_family.stitch(A3(ratio=ratio), system, documents, uncached=uncached)
    prompt = any_family.prompt(system, documents, uncached=uncached)
    assert_same("a3, edges", ours, any_family.reference.a3(prompt, ratio))


def test_long_question_is_scored_in_tiles(any_family: Tiny) -> None:
    """150 question rows: three tiles add up to the same scores."""
    question = [(7 * i + 3) % 100 for i in range(150)]
    prompt = any_family.prompt(question=question)
    ours = any_family.stitch(A3(ratio=0.05), question=question)
    assert selected(ours) == any_family.reference.a3_selected(prompt, 0.05)
    assert_same("a3, long question", ours, any_family.reference.a3(prompt, 0.05))


def test_work_per_layer(model: Tiny) -> None:
    """Layer 0 attends for all rows, layer 1 for the chosen, the last for the answer's row only."""
    n = len([*S, *D1, *D2, *D3, *Q])
    chosen = math.floor(0.2 * n) + len(Q)
    assert model.stitch(A3(ratio=0.2)).result.rows_per_layer == [n, chosen, chosen, chosen, 1]


@pytest.mark.parametrize(("ratio", "n", "wanted"), [(0.29, 100, 29), (0.57, 100, 57), (0.1, 30, 3)])
def test_count_is_floor_of_the_decimal_product(
    model: Tiny, ratio: float, n: int, wanted: int
) -> None:
    """⌊r · n⌋ as a person computes it: 0.29 · 100 is 29, though its float product is below."""
    document = [(11 * i + 5) % 100 for i in range(n - len(S) - len(Q))]
    run = model.stitch(A3(ratio=ratio), documents=[document])
    assert run.layout.tokens == n
    assert len(selected(run)) == wanted


@pytest.mark.parametrize("layers", [1, 2])
def test_two_layers_are_vanilla_at_any_ratio(layers: int) -> None:
    """docs/specification.md §1.5: layers 0 and 1 are exact, and there is no other."""
    made = tiny_of(random_model(tiny_config("llama", num_hidden_layers=layers)))
    expected = made.reference.vanilla([*S, *D1, *D2, *D3, *Q])
    for ratio in (0.0, 0.4, 1.0):
        assert_same("a3, two layers", made.stitch(A3(ratio=ratio)), expected)
