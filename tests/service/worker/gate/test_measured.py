"""The default bounds on what was measured: first tokens of 208 hard prompts against full prefill's,
in many orders. The samples are those of benchmarks/results/fidelity/fidelity.md."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import pytest

from service.worker.gate.policy import Bounds, DriftMonitor, Observation
from service.worker.gate.shadow import WORST_NATS

RESULT = Path(__file__).parents[3] / "data" / "first_tokens_of_fidelity.json"
ORDERS = 60


@cache
def measured() -> dict[str, list[Observation]]:
    found = json.loads(RESULT.read_text(encoding="utf-8"))["configurations"]
    return {
        c["name"]: [
            Observation(min(WORST_NATS, kl), agrees == 1)
            for kl, agrees in zip(
                c["samples"]["kl_first"], c["samples"]["agree_first"], strict=True
            )
        ]
        for c in found
    }


def trips(name: str) -> float:
    """Share of orders in which the method is left before its 208 checks are over."""
    random, seen = Random(0), list(measured()[name])
    tripped = 0
    for _ in range(ORDERS):
        random.shuffle(seen)
        drift = DriftMonitor(Bounds(), top=1)
        tripped += any(drift.observe(0, one) for one in seen)
    return tripped / ORDERS


@pytest.mark.parametrize(
    "name", ["full_reuse system", "pie system", "a3 r=0.15 system", "pie system int2"]
)
def test_methods_that_answer_half_as_often_right_are_left(name: str) -> None:
    assert trips(name) == 1.0


@pytest.mark.parametrize(
    "name",
    [
        "full prefill none",
        "question_scout r=0.15 system",
        "question_scout r=0.3 system",
        "question_scout r=0.15 system int4",
    ],
)
def test_methods_that_answer_nearly_as_often_right_stay(name: str) -> None:
    assert trips(name) == 0.0
