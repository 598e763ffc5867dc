"""The configurations that are compared on a real model, where each one costs seconds a prompt.

Three ratios for every method that has one, question_scout's and question_trail's other choices, and
what chunks are precomputed behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.compared.variants import RandomRows
from service.worker.api import (
    A3,
    CacheBlend,
    FullReuse,
    LegoLink,
    Pie,
    QuestionScout,
    QuestionTrail,
    Vanilla,
)

RATIO = 0.15
"""The papers' ratio."""
RATIOS = (0.05, RATIO, 0.3)
AGAIN_FROM = (0.33, 0.0)
"""Share of the layers in which the question's rows are not computed a second time."""
EDGES = (0, 4, 8)
"""Numbers of first tokens of every document, besides the standard one."""


def real() -> list[Configuration]:
    """Full prefill first; the others by family, and by what they cost."""
    return [
        Configuration("full prefill", Vanilla(), prefix_mode="none"),
        Configuration("full_reuse", FullReuse(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="bos"),
        Configuration("pie", Pie()),
        Configuration("random rows", RandomRows(RATIO), "r=0.15"),
        Configuration("legolink", LegoLink(4, 4), "k=4"),
        Configuration("legolink", LegoLink(32, 32), "k=32"),
        *(Configuration("a3", A3(ratio), f"r={ratio:g}") for ratio in RATIOS),
        Configuration("a3", A3(RATIO, selection_layer=8), "r=0.15", "layer 8"),
        *(Configuration("cacheblend", CacheBlend(ratio), f"r={ratio:g}") for ratio in RATIOS),
        *_question_scout(),
        *(_trail(ratio, again) for again in AGAIN_FROM for ratio in RATIOS),
        *_storage(),
    ]


def behind(modes: Iterable[str]) -> list[Configuration]:
    """What is measured with chunks precomputed behind other documents.

    Args:
        modes: names of the prompts' own ways to choose these (`Prompt.behind`).
    """
    return [replace(c, prefix_mode=mode) for mode in modes for c in _compared()]


def _compared() -> Iterator[Configuration]:
    yield Configuration("pie", Pie())
    yield Configuration("a3", A3(RATIO), f"r={RATIO:g}")
    yield Configuration("cacheblend", CacheBlend(RATIO), f"r={RATIO:g}")
    for ratio in RATIOS:
        yield _scout(QuestionScout(ratio))


def _question_scout() -> Iterator[Configuration]:
    for again in AGAIN_FROM:
        for ratio in RATIOS:
            yield _scout(QuestionScout(ratio, again_from=again))
    for edge in EDGES:
        yield _scout(QuestionScout(RATIO, edge, again_from=0), f"edge {edge} ")


def _storage() -> Iterator[Configuration]:
    """What chunks are precomputed behind, and what they are stored as."""
    scout = QuestionScout(RATIO, again_from=0)
    for prefix in ("none", "bos"):
        yield Configuration("question_scout", scout, "r=0.15", "again from 0", prefix)
    for codec in ("int8", "int4", "int2"):
        yield Configuration("pie", Pie(), codec=codec)
        yield Configuration("question_scout", scout, "r=0.15", "again from 0", codec=codec)


def _scout(method: QuestionScout, variant: str = "") -> Configuration:
    return Configuration(
        "question_scout",
        method,
        f"r={method.ratio:g}",
        f"{variant}again from {method.again_from:g}",
    )


def _trail(ratio: float, again: float) -> Configuration:
    method = QuestionTrail(ratio, again_from=again)
    return Configuration("question_trail", method, f"r={ratio:g}", f"again from {again:g}")
