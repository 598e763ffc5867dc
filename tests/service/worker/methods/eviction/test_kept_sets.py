"""Every method's kept sets equal the eager reference's, over random attention
(docs/specification.md §2.9)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from kvstitch.service.worker.methods.registry import eviction_methods, make_eviction
from tests.service.worker.methods.eviction.harness import (
    EXPECTED,
    KV_HEADS,
    LAYERS,
    Shape,
    expected,
    head_scores,
    kept_by,
    random_layers,
)

pytestmark = pytest.mark.exhaustive

# Defaults (windows wider than the question), then what bends every formula.
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "streaming_llm": [{}, {"sinks": 0}, {"sinks": 7}],
    "h2o": [{}, {"recent": 2}],
    "snapkv": [{}, {"window": 3, "kernel": 3}, {"window": 1, "kernel": 1}, {"kernel": 101}],
    "pyramidkv": [{}, {"window": 3, "beta": 2.5}, {"beta": 1.0}],
    "ada_snapkv": [{}, {"window": 3, "alpha": 0.0}, {"alpha": 0.55, "kernel": 1}],
    "ada_pyramidkv": [{}, {"window": 3, "alpha": 0.6, "beta": 3.3}],
    "headkv": [{}, {"variant": "R", "beta": 1.1, "window": 3}, {"beta": 5.0}],
    "kvec": [
        {},
        {"window": 3, "extended": 7, "delta": 1},
        {"window": 3, "extended": 10, "delta": 1, "pool": "max7", "lam": 2.5, "beta": 0.6},
        {"window": 5, "extended": 2, "delta": 9, "lam": 0.3, "beta": 0.0},
        {"window": 2, "delta": 0, "beta": 1.0},
    ],
}
CASES = [(name, given) for name, many in PARAMETERS.items() for given in many]
SHAPES = [
    Shape(5, 40, 6),  # windows are the whole question
    Shape(5, 40, 14),  # question longer than some windows
    Shape(0, 30, 6),  # no system prompt
    Shape(5, 30, 1),  # one question token
    Shape(9, 4, 9),  # hardly any document
    Shape(3, 90, 11),
]


def identify(value: Any) -> str:
    return str(value).replace(" ", "")


def budgets(shape: Shape, protect: bool) -> list[int]:
    n, fixed = shape.tokens, shape.system + shape.question
    if protect:  # below what is always kept, one above it, the middle, all but one
        return [1, fixed, fixed + 1, fixed + 5, (fixed + n) // 2, n - 1]
    return [2, 4, 5, 9, n // 3, n // 2 + 1, n - 1]


def test_every_method_is_here() -> None:
    """A new method must bring its reference (GemFilter has a test of its own)."""
    assert set(PARAMETERS) == set(EXPECTED) == eviction_methods().keys() - {"gemfilter"}


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("streaming_llm", {"sinks": 4}),
        ("h2o", {"recent": 8}),
        ("snapkv", {"window": 32, "kernel": 7}),
        ("pyramidkv", {"window": 32, "kernel": 7, "beta": 20.0}),
        ("ada_snapkv", {"window": 32, "kernel": 7, "alpha": 0.2}),
        ("ada_pyramidkv", {"window": 32, "kernel": 7, "alpha": 0.2, "beta": 20.0}),
        ("headkv", {"window": 8, "kernel": 7, "variant": "R2", "beta": 1.5}),
        ("gemfilter", {"layer": 0, "kernel": 5}),
        (
            "kvec",
            {"window": 16, "extended": 32, "delta": 3, "lam": 1.0, "beta": 0.25, "pool": "none"},
        ),
    ],
)
def test_defaults_are_those_of_the_papers(name: str, defaults: dict[str, Any]) -> None:
    """docs/specification.md §2: what a request without parameters gets."""
    assert asdict(make_eviction(name, {})) == {"budget": 1024, "protect": True, **defaults}


@pytest.mark.parametrize("shape", SHAPES, ids=identify)
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("protect", [True, False], ids=["protect", "open"])
@pytest.mark.parametrize(("name", "given"), CASES, ids=identify)
def test_kept_sets_are_the_references(
    name: str, given: dict[str, Any], protect: bool, group: int, shape: Shape
) -> None:
    """And exactly the budget in sum, over every length and budget."""
    scores = head_scores(LAYERS, KV_HEADS * group)
    for budget in budgets(shape, protect):
        method = make_eviction(name, {**given, "budget": budget, "protect": protect})
        ours = kept_by(method, shape.layout, random_layers(shape, group), scores)
        assert ours == expected(name, method, shape, group), f"budget {budget}"
        always = shape.system + shape.question if protect else 0
        entries = sum(len(head) for heads in ours for head in heads)
        assert entries == LAYERS * KV_HEADS * min(shape.tokens, max(budget, always))


@pytest.mark.parametrize(("name", "given"), CASES, ids=identify)
def test_prompts_in_a_row_leave_no_trace(name: str, given: dict[str, Any]) -> None:
    """One method object, long, short, long again with other numbers, then the first once more."""
    method = make_eviction(name, {**given, "budget": 20})
    scores = head_scores(LAYERS, 3 * KV_HEADS)
    for shape, seed in ((SHAPES[5], 0), (SHAPES[0], 1), (SHAPES[4], 2), (SHAPES[5], 0)):
        ours = kept_by(method, shape.layout, random_layers(shape, 3, seed), scores)
        assert ours == expected(name, method, shape, 3, seed)


@pytest.mark.parametrize("name", [*EXPECTED, "gemfilter"])
def test_grouped_heads_with_one_query_are_one_head(name: str) -> None:
    """GQA: three equal query heads per KV head keep what one does."""
    shape = SHAPES[1]
    single = random_layers(shape, 1)
    tripled = [(q.repeat_interleave(3, dim=1), k) for q, k in single]
    scores = head_scores(LAYERS, KV_HEADS)
    shared = {key: s.repeat_interleave(3, dim=1) / 3 for key, s in scores.items()}
    for protect in (True, False):
        method = make_eviction(name, {"budget": 28, "protect": protect})
        one = kept_by(method, shape.layout, single, scores)
        assert kept_by(method, shape.layout, tripled, shared) == one


@pytest.mark.parametrize("name", [*EXPECTED, "gemfilter"])
def test_a_budget_that_fits_keeps_everything(name: str) -> None:
    shape = SHAPES[0]
    everything = [[list(range(shape.tokens))] * KV_HEADS] * LAYERS
    scores = head_scores(LAYERS, KV_HEADS)
    for budget in (shape.tokens, shape.tokens + 1, 2**40):
        method = make_eviction(name, {"budget": budget, "protect": False})
        assert kept_by(method, shape.layout, random_layers(shape, 1), scores) == everything


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "ada_snapkv", "ada_pyramidkv"])
def test_flat_attention_keeps_the_first(name: str) -> None:
    """Ties go to the lower index, within every head."""
    shape = Shape(0, 40, 4)
    flat = [(torch.zeros(44, 6, 8), torch.zeros(44, 2, 8))] * LAYERS
    method = make_eviction(name, {"budget": 20, "protect": False})
    for heads in kept_by(method, shape.layout, flat):
        for head in heads:
            assert head == [*range(len(head) - 4), *range(40, 44)]
