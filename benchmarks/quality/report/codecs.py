"""What storing chunks in fewer bits costs: each codec compared with raw, for each fusion method."""

from __future__ import annotations

from benchmarks.quality.report.scored import Scores
from benchmarks.quality.report.tables import (
    Compared,
    about,
    compare_all,
    difference_table,
    score_table,
)

LEGEND = """\
Difference: less the same method's average with raw chunks, on the same samples [95 % interval]; p
of the paired permutation test, Holm-corrected over the table. Won and lost: samples.
"""


def sections(scores: Scores) -> list[str]:
    return [
        about(scores),
        LEGEND,
        difference_table(rivals(scores), costs=False),
        "## By task\n",
        score_table(scores),
    ]


def rivals(scores: Scores) -> list[Compared]:
    """Pairs of every configuration with a codec and the raw one of the same curve."""
    raw = {s.configuration.curve: s for s in scores.rows if s.configuration.codec == "raw"}
    pairs = [(s, raw[s.configuration.curve]) for s in scores.rows if s.configuration.codec != "raw"]
    return compare_all(scores, pairs)
