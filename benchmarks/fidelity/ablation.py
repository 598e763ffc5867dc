"""What each part of question_scout is worth: one change at a time, at one budget.

Layers and heads are chosen on separate prompts (`Calibration`): each one alone ranks the tokens,
and the one whose ranking leaves the least divergence is best. Nothing is tuned on reported prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.compared.picking import Pick
from benchmarks.fidelity.compared.recipes import (
    ExactFirstLayer,
    Oracle,
    RandomEvidence,
    Tapered,
    TwoRounds,
    ValueWeighted,
)
from benchmarks.fidelity.compared.variants import AttendedDeviation, ScoutVariant
from benchmarks.fidelity.measure import Measurer
from benchmarks.fidelity.report.records import Records
from benchmarks.fidelity.runner import complete, found, measure_all
from service.tuning.measuring.case import Recipe
from service.tuning.measuring.prompt_ids import Prompt
from service.worker.api import A3, CacheBlend, Pie, QuestionScout, Vanilla
from service.worker.methods.api import DenseMethod

CALIBRATION_SAMPLES = 4
"""Prompts of each task for choosing layers and heads."""
_SMALLEST = 1e-7
"""A smaller KL is rounding error, and its logarithm would be noise."""

Head = tuple[int, int]


@dataclass(frozen=True)
class Calibration:
    """Layers and (layer, head) pairs, best first."""

    layers: tuple[int, ...]
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class Ablation:
    """The ablation of question_scout.

    Attributes:
        layers: of the model.
        heads: query heads of a layer.
        ratio: share of rows to recompute.
        edge: first tokens of every chunk that are recomputed.
    """

    layers: int
    heads: int
    ratio: float = QuestionScout().ratio
    edge: int = QuestionScout().edge

    @property
    def pick(self) -> Pick:
        return Pick(self.ratio, self.edge)

    @property
    def base(self) -> Configuration:
        """question_scout as the service has it, with which every change is compared."""
        return self._of("question_scout", QuestionScout(self.ratio, self.edge), f"edge {self.edge}")

    def candidates(self) -> dict[Head | int, Configuration]:
        """Configurations that rank by one layer alone or one head alone."""
        alone: dict[Head | int, Configuration] = {}
        for layer in range(self.layers):
            alone[layer] = self._scout(f"layer {layer} only", layers=(layer,))
            for head in range(self.heads):
                name, at = f"head {layer}.{head} only", (layer, head)
                alone[at] = self._scout(name, heads="only", chosen=(at,))
        return alone

    def calibrated(
        self, measurer: Measurer, prompts: Sequence[Prompt], records: Records
    ) -> Calibration:
        """Orders layers and heads by the geometric mean of the first token's KL.

        Raises:
            KeyboardInterrupt: the run was interrupted before any prompt was measured.
        """
        alone = self.candidates()
        measure_all(measurer, prompts, list(alone.values()), records)
        measured = complete(prompts, list(alone.values()), records)
        if not measured:
            raise KeyboardInterrupt

        def loss(configuration: Configuration) -> float:
            seen = found(measured, configuration, records)
            return fmean(math.log(max(r.kl_first, _SMALLEST)) for r in seen)

        order = sorted(alone, key=lambda at: loss(alone[at]))
        return Calibration(
            tuple(at for at in order if isinstance(at, int)),
            tuple(at for at in order if not isinstance(at, int)),
        )

    def configurations(self, chosen: Calibration) -> list[Configuration]:
        return [
            Configuration("full prefill", Vanilla(), prefix_mode="none"),
            Configuration("pie", Pie()),
            self._of("a3", A3(self.ratio)),
            self._of("cacheblend", CacheBlend(self.ratio)),
            self._of("cacheblend", CacheBlend(self.ratio), prefix_mode="none"),
            self.base,
            *self._edges(),
            *self._layers(chosen.layers),
            *self._heads(chosen.heads),
            *self._rankings(),
            *self._recipes(),
        ]

    def _edges(self) -> Iterator[Configuration]:
        for first in (0, 1, 2, 3, 4, 6, 8):
            if first != self.edge:
                yield self._scout(f"first {first}", pick=replace(self.pick, first=first))
        yield self._scout("edges unbounded", pick=replace(self.pick, ends=1.0))
        for last in (1, 2, 4):
            yield self._scout(f"last {last} too", pick=replace(self.pick, last=last))
            alone = Pick(self.ratio, first=0, last=last)
            yield self._scout(f"last {last} instead", pick=alone)

    def _layers(self, best: Sequence[int]) -> Iterator[Configuration]:
        half, third = self.layers // 2, self.layers // 3
        parts = {
            "lower half": range(half),
            "upper half": range(half, self.layers),
            "middle third": range(third, self.layers - third),
            "upper third": range(self.layers - third, self.layers),
            "best layer": best[:1],
            "best quarter of layers": best[: math.ceil(self.layers / 4)],
            "best half of layers": best[: math.ceil(self.layers / 2)],
        }
        for name, part in parts.items():
            yield self._scout(name, layers=tuple(sorted(part)))

    def _heads(self, best: Sequence[Head]) -> Iterator[Configuration]:
        yield self._scout("max over heads", heads="max")
        for name, share in (("head", 0.0), ("eighth of heads", 0.125), ("quarter of heads", 0.25)):
            count = max(1, round(share * len(best)))
            yield self._scout(f"best {name}", heads="only", chosen=tuple(sorted(best[:count])))

    def _rankings(self) -> Iterator[Configuration]:
        yield self._scout("sum over question rows", question_rows="sum")
        for weight in (0.25, 1.0, 2.0):
            method = QuestionScout(self.ratio, self.edge, weight)
            yield self._of("question_scout", method, f"question weight {weight:g}")
        yield self._scout("max over question rows", question_rows="max")
        yield self._scout("last question row", question_rows="last")
        upper = tuple(range(self.layers // 2, self.layers))
        yield self._scout("last question row, upper half", question_rows="last", layers=upper)
        for reach in (1, 2):
            yield self._scout(f"neighbours {reach}", pick=replace(self.pick, dilate=reach))
            yield self._scout(f"pooled {reach}", pick=replace(self.pick, pool=reach))

    def _recipes(self) -> Iterator[Configuration]:
        pick = self.pick
        recipes: dict[str, DenseMethod | Recipe] = {
            "attention × value norm": ValueWeighted(pick),
            "two rounds": TwoRounds(pick),
            "exact first layer": ExactFirstLayer(pick),
            "exact first layer, half the rows": ExactFirstLayer(Pick(self.ratio / 2, self.edge)),
            "tapering 1.5 to 0.5": Tapered(pick, 1.5, 0.5),
            "tapering 2 to 0": Tapered(pick, 2.0, 0.0),
            "attention × deviation at layer 1": AttendedDeviation(self.ratio),
            "random instead of scouted": RandomEvidence(pick),
            "oracle": Oracle(pick),
            "oracle, no edges": Oracle(replace(pick, first=0)),
        }
        for name, method in recipes.items():
            yield self._of("question_scout", method, name)

    def _scout(self, name: str, **changes: Any) -> Configuration:
        method = replace(ScoutVariant(self.pick), **changes)
        return self._of("question_scout", method, name)

    def _of(
        self,
        family: str,
        method: DenseMethod | Recipe,
        variant: str = "",
        prefix_mode: str = "system",
    ) -> Configuration:
        return Configuration(family, method, f"r={self.ratio:g}", variant, prefix_mode)
