"""Scores of generated texts, in [0, 1], as the papers' benchmarks define them.

RULER's string matches, LongBench's metrics, and the ROUGE-1 of the needle tests. Odd behaviour of
the official code is kept and documented, so that results can be compared with published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.quality.scores.edit import edit_similarity
from benchmarks.quality.scores.matching import (
    classification,
    count,
    exact,
    retrieval,
    string_match_all,
    string_match_part,
)
from benchmarks.quality.scores.rouge import rouge1, rouge_l
from benchmarks.quality.scores.words import qa_f1
from service.errors import InvalidRequest

__all__ = ["METRICS", "Metric", "score"]

Metric = Callable[[str, Sequence[str], Sequence[str]], float]
"""Score of a text, given its references and the names of all classes (empty if there are none)."""


def _best(of: Callable[[str, str], float]) -> Metric:
    """The metric against the best fitting reference."""
    return lambda text, references, classes: max(of(text, reference) for reference in references)


def _of_first_line(metric: Metric) -> Metric:
    """The metric of the first line that is not empty, as LongBench does for few-shot tasks."""

    def of(text: str, references: Sequence[str], classes: Sequence[str]) -> float:
        return metric(text.lstrip("\n").partition("\n")[0], references, classes)

    return of


METRICS: dict[str, Metric] = {
    "exact": _best(exact),
    "string_match_all": lambda text, references, classes: string_match_all(text, references),
    "string_match_part": lambda text, references, classes: string_match_part(text, references),
    "qa_f1": _best(qa_f1),
    "rouge_l": _best(rouge_l),
    "rouge1": _best(rouge1),
    "classification": classification,
    "count": _best(count),
    "retrieval": _best(retrieval),
    "edit_similarity": _best(edit_similarity),
}
METRICS |= {
    f"{name}_first_line": _of_first_line(METRICS[name])
    for name in ("qa_f1", "rouge_l", "classification")
}


def score(metric: str, text: str, references: Sequence[str], classes: Sequence[str] = ()) -> float:
    """Score of a text by the metric of that name.

    Raises:
        InvalidRequest: the metric is unknown, or references or classes are missing.
    """
    if metric not in METRICS:
        raise InvalidRequest(
            f"no metric is named {metric!r}: take one of {', '.join(METRICS)}", field="metric"
        )
    if not references:
        raise InvalidRequest("a text is scored against at least one reference", field="references")
    return METRICS[metric](text, references, classes)
