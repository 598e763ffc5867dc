"""What each part of question_scout is worth: one change at a time, at one budget.

Layers and heads are chosen on prompts of their own (`Calibration`): each alone ranks, the one whose
ranking leaves the least divergence is best. Nothing is tuned on the prompts that are reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.fidelity.case import Recipe
from benchmarks.fidelity.configuration import Configuration
from benchmarks.fidelity.measure import Measurer
from benchmarks.fidelity.picking import Pick
from benchmarks.fidelity.prompts import Prompt
from benchmarks.fidelity.recipes import (
    ExactFirstLayer,
    Oracle,
    RandomEvidence,
    Tapered,
    TwoRounds,
    ValueWeighted,
)
from benchmarks.fidelity.records import Records
from benchmarks.fidelity.runner import found, measure_all
from benchmarks.fidelity.variants import AttendedDeviation, ScoutVariant
from service.worker.fusion.a3 import Method as A3
from service.worker.fusion.base import FusionMethod
from service.worker.fusion.cacheblend import Method as CacheBlend
from service.worker.fusion.pie import Method as Pie
from service.worker.fusion.question_scout import Method as QuestionScout
from service.worker.fusion.vanilla import Method as Vanilla

RATIO = 0.15
BASE = Configuration("question_scout", QuestionScout(RATIO), f"r={RATIO:g}")
"""The service's own method: what every change is compared with."""
PICK = Pick(RATIO, first=QuestionScout().edge)
CALIBRATION_SAMPLES = 4
"""Prompts a task for choosing layers and heads."""
_SMALLEST = 1e-7
"""KL below this is rounding: its logarithm would be noise."""

Head = tuple[int, int]


@dataclass(frozen=True)
class Calibration:
    """Layers and (layer, head) pairs, the best ranking first."""

    layers: tuple[int, ...]
    heads: tuple[Head, ...]


def candidates(layers: int, heads: int) -> dict[Head | int, Configuration]:
    """Every layer alone and every head alone as the whole ranking."""
    alone: dict[Head | int, Configuration] = {
        layer: _scout(ScoutVariant(PICK, layers=(layer,)), f"layer {layer} only")
        for layer in range(layers)
    }
    for layer in range(layers):
        for head in range(heads):
            method = ScoutVariant(PICK, heads="only", chosen=((layer, head),))
            alone[layer, head] = _scout(method, f"head {layer}.{head} only")
    return alone


def calibrated(
    measurer: Measurer, prompts: Sequence[Prompt], layers: int, heads: int, records: Records
) -> Calibration:
    """Orders by the geometric mean of the first token's KL: what helps on most prompts."""
    alone = candidates(layers, heads)
    measure_all(measurer, prompts, list(alone.values()), records)

    def loss(configuration: Configuration) -> float:
        measured = found(prompts, configuration, records)
        return fmean(math.log(max(r.kl_first, _SMALLEST)) for r in measured)

    order = sorted(alone, key=lambda at: loss(alone[at]))
    return Calibration(
        tuple(at for at in order if isinstance(at, int)),
        tuple(at for at in order if not isinstance(at, int)),
    )


def ablation(layers: int, chosen: Calibration) -> list[Configuration]:
    """For a model of `layers` layers."""
    base = ScoutVariant(PICK)
    return [
        Configuration("full prefill", Vanilla(), prefix_mode="none"),
        Configuration("pie", Pie()),
        Configuration("a3", A3(RATIO), f"r={RATIO:g}"),
        Configuration("cacheblend", CacheBlend(RATIO), f"r={RATIO:g}"),
        Configuration("cacheblend", CacheBlend(RATIO), f"r={RATIO:g}", prefix_mode="none"),
        BASE,
        *_edges(base),
        *_layers(base, layers, chosen),
        *_heads(base, chosen),
        *_others(base),
    ]


def _edges(base: ScoutVariant) -> Iterator[Configuration]:
    for first in (0, 1, 2, 3, 4, 6, 8):
        if first != PICK.first:
            yield _scout(replace(base, pick=replace(PICK, first=first)), f"first {first}")
    for last in (1, 2, 4):
        yield _scout(replace(base, pick=replace(PICK, last=last)), f"last {last} too")
        alone = replace(PICK, first=0, last=last)
        yield _scout(replace(base, pick=alone), f"last {last} instead")


def _layers(base: ScoutVariant, layers: int, chosen: Calibration) -> Iterator[Configuration]:
    half, third = layers // 2, layers // 3
    parts = {
        "lower half": range(half),
        "upper half": range(half, layers),
        "middle third": range(third, layers - third),
        "best layer": chosen.layers[:1],
        "best quarter of layers": chosen.layers[: math.ceil(layers / 4)],
        "all but layer 0": range(1, layers),
    }
    for name, part in parts.items():
        yield _scout(replace(base, layers=tuple(sorted(part))), name)


def _heads(base: ScoutVariant, chosen: Calibration) -> Iterator[Configuration]:
    yield _scout(replace(base, heads="max"), "max over heads")
    for name, share in (("head", 0.0), ("eighth of heads", 1 / 8), ("quarter of heads", 1 / 4)):
        count = max(1, round(share * len(chosen.heads)))
        yield _scout(
            replace(base, heads="only", chosen=tuple(sorted(chosen.heads[:count]))), f"best {name}"
        )


def _others(base: ScoutVariant) -> Iterator[Configuration]:
    yield _scout(replace(base, question_rows="max"), "max over question rows")
    yield _scout(replace(base, question_rows="last"), "last question row")
    for reach in (1, 2):
        yield _scout(replace(base, pick=replace(PICK, dilate=reach)), f"neighbours {reach}")
        yield _scout(replace(base, pick=replace(PICK, pool=reach)), f"pooled {reach}")
    recipes: dict[str, FusionMethod | Recipe] = {
        "attention × value norm": ValueWeighted(PICK),
        "two rounds": TwoRounds(PICK),
        "exact first layer": ExactFirstLayer(PICK),
        "exact first layer, same cost": ExactFirstLayer(replace(PICK, ratio=RATIO / 2)),
        "tapering 1.5 to 0.5": Tapered(PICK, 1.5, 0.5),
        "tapering 2 to 0": Tapered(PICK, 2.0, 0.0),
        "attention × deviation at layer 1": AttendedDeviation(RATIO),
        "random instead of scouted": RandomEvidence(PICK),
        "oracle": Oracle(PICK),
        "oracle, no edges": Oracle(replace(PICK, first=0)),
    }
    for name, method in recipes.items():
        yield _scout(method, name)


def _scout(method: FusionMethod | Recipe, variant: str) -> Configuration:
    return Configuration("question_scout", method, f"r={RATIO:g}", variant)
