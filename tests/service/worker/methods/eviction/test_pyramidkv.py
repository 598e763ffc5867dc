"""PyramidKV's schedule (docs/specification.md §2.4): linear, exact in sum, never more than there
is."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.worker.methods.bases.eviction import PromptAttention
from kvstitch.service.worker.methods.eviction.pyramidkv import Method as PyramidKV
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.model.model_facts import ModelFacts
from tests.service.worker.methods.eviction.harness import Shape, kept_by, random_layers


def rooms(shape: Shape, budget: int, layers: int, beta: float = 20.0) -> list[int]:
    """Entries for competitors per layer; S and Q are kept beside them."""
    method, layout = PyramidKV(budget=budget, beta=beta), shape.layout
    facts = ModelFacts(layers, 6, 2)
    empty = torch.empty(0)
    room = budget - shape.system - shape.question
    return [
        method.layer_room(
            PromptAttention(
                layer=layer,
                layout=layout,
                k=empty,
                observed=empty,
                kept_before=empty,
                scale=1.0,
                model=facts,
            ),
            room,
            shape.document,
        )
        for layer in range(layers)
    ]


def test_by_hand() -> None:
    """b = 100: from 2·100 − 5 to ⌊100 / 20⌋ in four steps of 47.5."""
    assert rooms(Shape(4, 400, 6), 110, 5) == [195, 148, 100, 52, 5]
    assert rooms(Shape(4, 400, 6), 110, 2) == [195, 5]
    assert rooms(Shape(4, 400, 6), 110, 1) == [100]
    assert rooms(Shape(4, 400, 6), 110, 5, beta=1.0) == [100] * 5
    assert rooms(Shape(4, 400, 6), 110, 3, beta=2.5) == [160, 100, 40]


def test_first_layer_takes_no_more_than_there_is() -> None:
    """2·100 − 5 > 150 document tokens: from 150 to 50 instead."""
    assert rooms(Shape(30, 150, 30), 160, 5) == [150, 125, 100, 75, 50]


def test_short_prompts_are_snapkv() -> None:
    """T < 2b: no slope; at T = 2b there is one."""
    assert rooms(Shape(0, 198, 1), 101, 4) == [100] * 4
    assert rooms(Shape(0, 199, 1), 101, 4)[0] == 195


@pytest.mark.parametrize("layers", [1, 2, 5, 12, 28, 32])
@pytest.mark.parametrize("beta", [1.0, 1.5, 7.3, 20.0])
def test_the_sum_is_exact(layers: int, beta: float) -> None:
    """Over many budgets; and the schedule never rises."""
    shape = Shape(7, 170, 13)
    for budget in range(20, 190, 7):
        found = rooms(shape, budget, layers, beta)
        assert sum(found) == layers * (budget - 20)
        assert all(0 <= room <= 170 for room in found)
        assert found == sorted(found, reverse=True)


def test_layers_hold_unequal_memory_and_rank_as_snapkv() -> None:
    shape = Shape(5, 60, 6)
    layers = random_layers(shape, 3)
    kept = kept_by(PyramidKV(budget=27), shape.layout, layers)
    assert [len(heads[0]) - 11 for heads in kept] == [32, 21, 11, 0]
    for layer, heads in enumerate(kept):
        snapkv = SnapKV(budget=len(heads[0]))
        assert heads == kept_by(snapkv, shape.layout, layers)[layer]
