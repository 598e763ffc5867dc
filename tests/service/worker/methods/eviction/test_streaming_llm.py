"""StreamingLLM (docs/specification.md §2.1): sinks and recent tokens, by hand."""

from __future__ import annotations

import pytest

from kvstitch.service.worker.methods.eviction.streaming_llm import Method as StreamingLLM
from tests.service.worker.methods.eviction.harness import (
    KV_HEADS,
    LAYERS,
    Shape,
    kept_by,
    random_layers,
)


def kept(shape: Shape, **given: object) -> list[int]:
    """The same for every layer and head."""
    method = StreamingLLM(**given)  # type: ignore[arg-type]
    found = kept_by(method, shape.layout, random_layers(shape, 3))
    assert found == [[found[0][0]] * KV_HEADS] * LAYERS
    return found[0][0]


@pytest.mark.parametrize(
    ("budget", "sinks", "expected"),
    [
        (9, 4, [0, 1, 2, 3, 15, 16, 17, 18, 19]),
        (5, 4, [0, 1, 2, 3, 19]),
        (3, 4, [0, 1, 19]),  # the last token outlives sinks
        (1, 4, [19]),
        (4, 0, [16, 17, 18, 19]),
        (4, 30, [0, 1, 2, 19]),
        (19, 4, [0, 1, 2, 3, *range(5, 20)]),
    ],
)
def test_first_and_last(budget: int, sinks: int, expected: list[int]) -> None:
    assert kept(Shape(2, 15, 3), budget=budget, sinks=sinks, protect=False) == expected


@pytest.mark.parametrize(
    ("shape", "budget", "expected"),
    [
        (Shape(5, 12, 3), 10, [0, 1, 2, 3, 4, 15, 16, 17, 18, 19]),  # S holds the sinks
        (Shape(2, 15, 3), 10, [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]),
        (Shape(2, 15, 3), 6, [0, 1, 2, 17, 18, 19]),  # room for one sink only
        (Shape(2, 15, 3), 4, [0, 1, 17, 18, 19]),
    ],
)
def test_protected(shape: Shape, budget: int, expected: list[int]) -> None:
    """Sinks are the prompt's first tokens: those in S are kept and charged already."""
    assert kept(shape, budget=budget) == expected
