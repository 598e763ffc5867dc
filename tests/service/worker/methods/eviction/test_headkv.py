"""HeadKV (docs/specification.md §2.6): fixed shares per head from the model's calibration."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.messages.requests import Method as Named
from kvstitch.service.worker.methods.eviction.headkv import Method as HeadKV
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.model.model_facts import ModelFacts
from tests.service.worker.engines import rig
from tests.service.worker.methods.eviction.harness import (
    KV_HEADS,
    LAYERS,
    Shape,
    head_scores,
    kept_by,
    random_layers,
)
from tests.service.worker.tiny import tiny

SHAPE = Shape(5, 60, 6)
FIXED = 11


def counts(scores: list[list[float]], **given: object) -> list[list[int]]:
    """Document tokens per layer and KV head, six query heads in two groups."""
    table = torch.tensor(scores)
    facts = {"R": table / table.sum(), "R2": torch.full_like(table, 1 / table.numel())}
    method = HeadKV(variant="R", **given)  # type: ignore[arg-type]
    layers = random_layers(SHAPE, 3)[: len(scores)]
    kept = kept_by(method, SHAPE.layout, layers, facts)
    return [[len(head) - FIXED for head in heads] for heads in kept]


def test_by_hand() -> None:
    """b = 12, β = 2: six for every head; 4 · 6 in the pool, by the share of a group's sum."""
    # The groups' sums are 2 and 0, and 4 and 10, of 16.
    scores: list[list[float]] = [[1.0, 1, 0, 0, 0, 0], [1, 1, 2, 2, 4, 4]]
    assert counts(scores, budget=FIXED + 12, beta=2.0) == [[9, 6], [12, 21]]


def test_beta_one_gives_nothing_to_heads_without_score() -> None:
    scores: list[list[float]] = [[1.0, 1, 0, 0, 0, 0], [1, 1, 2, 2, 4, 4]]
    assert counts(scores, budget=FIXED + 12, beta=1.0) == [[6, 0], [12, 30]]


def test_more_than_there_is_goes_to_the_others() -> None:
    """One group has all the score: its 4 · 50 are 60 tokens at most; the rest is shared evenly
    among the others, which have none."""
    scores: list[list[float]] = [[0.0] * 6, [0, 0, 0, 3, 2, 1]]
    assert counts(scores, budget=FIXED + 50, beta=1.0) == [[47, 47], [46, 60]]


@pytest.mark.parametrize("beta", [1.0, 1.005, 1.5, 10.0, 1e6])
def test_the_sum_is_exact(beta: float) -> None:
    for seed in range(4):
        scores = head_scores(LAYERS, 6, seed)["R"].tolist()
        for budget in (12, 19, 40, 63, 70):
            found = counts(scores, budget=budget, beta=beta)
            flat = [n for heads in found for n in heads]
            assert sum(flat) == LAYERS * KV_HEADS * (budget - FIXED)
            assert all(0 <= n <= SHAPE.document for n in flat)


def test_equal_scores_are_snapkv() -> None:
    """With its own window of 8 of the question's 14 rows."""
    shape = Shape(5, 60, 14)
    layers = random_layers(shape, 3)
    even = {"R2": torch.full((LAYERS, 6), 1 / 24)}
    for budget in (20, 38, 69):
        ours = kept_by(HeadKV(budget=budget), shape.layout, layers, even)
        assert ours == kept_by(SnapKV(budget=budget, window=8), shape.layout, layers)


def test_variants_read_their_own_table() -> None:
    layers = random_layers(SHAPE, 3)
    scores = head_scores(LAYERS, 6)
    by_name = {
        name: kept_by(HeadKV(budget=30, variant=name), SHAPE.layout, layers, scores)
        for name in ("R", "R2")
    }
    assert by_name["R"] != by_name["R2"]
    swapped = {"R": scores["R2"], "R2": scores["R"]}
    assert by_name["R"] == kept_by(HeadKV(budget=30), SHAPE.layout, layers, swapped)


@pytest.mark.parametrize(("variant", "there"), [("R", {}), ("R", {"R2"}), ("R2", {"R"})])
def test_a_model_without_the_scores_is_refused(variant: str, there: set[str]) -> None:
    """The message names the file and the command."""
    facts = ModelFacts(4, 6, 2, {name: torch.full((4, 6), 1 / 24) for name in there})
    with pytest.raises(InvalidRequest) as error:
        HeadKV(variant=variant).check(facts)
    assert error.value.field == "eviction.method"
    for part in ("calibration.json", f"scores {variant} ", "`kvstitch tune`"):
        assert part in error.value.message
    HeadKV(variant=next(iter(there), "R")).check(
        ModelFacts(4, 6, 2, {next(iter(there), "R"): torch.full((4, 6), 1 / 24)})
    )


def test_the_engine_refuses_before_any_work() -> None:
    with rig(tiny("llama")) as at, pytest.raises(InvalidRequest, match=r"calibration\.json"):
        at.submit(eviction=Named("headkv", {"budget": 20}))
