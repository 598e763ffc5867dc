"""What each part of question_scout is worth: one change at a time, in every prefix mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.compared.variants import FewKeys, Oracle, RandomRows, WithFirstTokens
from service.worker.api import Pie, QuestionScout, Vanilla
from service.worker.methods.api import DenseMethod
from tuning.case import Recipe


def parts(modes: Iterable[str], ratio: float) -> list[Configuration]:
    """Full prefill, PIE, question_scout as it is (first of its family), and every change."""
    found = [Configuration("full prefill", Vanilla(), prefix_mode="none")]
    for mode in modes:
        found.append(Configuration("pie", Pie(), prefix_mode=mode))
        found += [
            Configuration("question_scout", method, f"r={ratio:g}", variant, mode)
            for variant, method in _changes(QuestionScout(ratio))
        ]
    return found


def base(mode: str, ratio: float) -> str:
    """The name of question_scout as it is."""
    return Configuration("question_scout", QuestionScout(ratio), f"r={ratio:g}", "", mode).name


def _changes(ours: QuestionScout) -> Iterator[tuple[str, DenseMethod | Recipe]]:
    ratio = ours.ratio
    yield "", ours
    yield "all layers", replace(ours, from_depth=0.0, to_depth=1.0)
    yield "upper half", replace(ours, to_depth=1.0)
    yield "lower half", replace(ours, from_depth=0.0, to_depth=0.5)
    yield "no shift", replace(ours, shift=0.0)
    yield "shift 0.5", replace(ours, shift=0.5)
    yield "shift 1", replace(ours, shift=1.0)
    yield "last row only", replace(ours, question=0.0)
    yield "mean row only", replace(ours, question=100.0)
    yield "first tokens too", WithFirstTokens(ratio)
    yield "few keys", FewKeys(ratio)
    yield "random rows", RandomRows(ratio)
    yield "oracle", Oracle(ratio)
