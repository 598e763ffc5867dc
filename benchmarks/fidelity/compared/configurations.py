"""The configurations that a run compares.

Every fusion method is measured over its range of costs, so that curves can be compared at equal
cost; with chunks precomputed alone and behind the system prompt, and in a few other ways.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.compared.variants import RandomRows
from service.worker.api import A3, CacheBlend, FullReuse, LegoLink, Pie, QuestionScout, Vanilla

RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
ENDS = (1, 2, 4, 8, 16)
"""Numbers of first and last tokens of LegoLink."""
PREFIXES = ("none", "system")
RATIO = 0.15
"""The papers' ratio, used where only one is measured."""


def standard(layers: int) -> list[Configuration]:
    """The configurations for a model with `layers` layers."""
    return [
        Configuration("full prefill", Vanilla(), prefix_mode="none"),
        *_without_choice(),
        *_baselines(),
        *_legolink(),
        *_cacheblend(),
        *_a3(layers),
        *_question_scout(),
        *_codecs(),
    ]


def _without_choice() -> Iterator[Configuration]:
    for prefix in ("none", "bos", "system"):
        yield Configuration("pie", Pie(), prefix_mode=prefix)
    for prefix in PREFIXES:
        yield Configuration("full_reuse", FullReuse(), prefix_mode=prefix)
        # Like A3 and CacheBlend, but without choosing rows.
        yield Configuration("pie", Pie(exact_layers=2), variant="exact 0-1", prefix_mode=prefix)


def _baselines() -> Iterator[Configuration]:
    for ratio in (0.05, RATIO, 0.3):
        yield Configuration("random rows", RandomRows(ratio), _amount(ratio))
    for prefix in PREFIXES:
        method = RandomRows(RATIO, exact_layers=2)
        yield Configuration("random rows", method, _amount(RATIO), "exact 0-1", prefix)


def _legolink() -> Iterator[Configuration]:
    for prefix in PREFIXES:
        for k in ENDS:
            yield Configuration("legolink", LegoLink(k, k), f"k={k}", prefix_mode=prefix)
    yield Configuration("legolink", LegoLink(4, 4), "k=4", prefix_mode="bos")
    for k in (2, 4, 8):
        yield Configuration("legolink", LegoLink(k, 0), f"k={k}", "first only")


def _cacheblend() -> Iterator[Configuration]:
    for prefix in PREFIXES:
        for ratio in RATIOS:
            yield Configuration("cacheblend", CacheBlend(ratio), _amount(ratio), "", prefix)
        method = CacheBlend(RATIO, metric="K")
        yield Configuration("cacheblend", method, _amount(RATIO), "K", prefix)
    yield Configuration("cacheblend", CacheBlend(RATIO), _amount(RATIO), prefix_mode="bos")


def _a3(layers: int) -> Iterator[Configuration]:
    for prefix in PREFIXES:
        for ratio in RATIOS:
            yield Configuration("a3", A3(ratio), _amount(ratio), "", prefix)
    yield Configuration("a3", A3(RATIO), _amount(RATIO), prefix_mode="bos")
    for layer in range(2, min(layers, 7)):
        method = A3(RATIO, selection_layer=layer)
        yield Configuration("a3", method, _amount(RATIO), f"layer {layer}")


def _question_scout() -> Iterator[Configuration]:
    for prefix in PREFIXES:
        for ratio in RATIOS:
            method = QuestionScout(ratio)
            yield Configuration("question_scout", method, _amount(ratio), "", prefix)
    yield Configuration("question_scout", QuestionScout(RATIO), _amount(RATIO), prefix_mode="bos")


def _codecs() -> Iterator[Configuration]:
    for codec in ("int8", "int4", "int2"):
        yield Configuration("pie", Pie(), codec=codec)
        yield Configuration("a3", A3(RATIO), _amount(RATIO), codec=codec)
        scout = QuestionScout(RATIO)
        yield Configuration("question_scout", scout, _amount(RATIO), codec=codec)


def _amount(ratio: float) -> str:
    return f"r={ratio:g}"
