"""The configurations that are compared on a real model, where each one costs seconds a prompt.

The papers' ratio for every method, question_scout's other choices, and what chunks are precomputed
behind. A name without anything behind it is that method with the service's own parameters.
"""

from __future__ import annotations

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


def real() -> list[Configuration]:
    """Full prefill first; the others by what they cost."""
    return [
        Configuration("full prefill", Vanilla(), prefix_mode="none"),
        Configuration("full_reuse", FullReuse(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="bos"),
        Configuration("pie", Pie()),
        Configuration("random rows", RandomRows(RATIO), "r=0.15"),
        Configuration("legolink", LegoLink(4, 4), "k=4"),
        Configuration("legolink", LegoLink(32, 32), "k=32"),
        *(Configuration("a3", A3(ratio), f"r={ratio:g}") for ratio in (0.05, RATIO, 0.3)),
        Configuration("cacheblend", CacheBlend(RATIO), "r=0.15"),
        *(
            Configuration("question_scout", QuestionScout(ratio, again_from=again), f"r={ratio:g}",
                          f"again from {again:g}")
            for again in (0.33, 0.0)
            for ratio in (0.05, RATIO)
        ),
        Configuration("question_trail", QuestionTrail(RATIO), "r=0.15"),
    ]  # fmt: skip
