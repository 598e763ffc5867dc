"""One question with its answers, and what is counted over many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from demo.client import Answer
from demo.questions import DemoQuestion
from demo.scenario import BASELINE, Method, Scenario


@dataclass(frozen=True)
class Outcome:
    """One question and its answer under every method."""

    question: DemoQuestion
    answers: dict[Method, Answer]

    def right(self, method: Method) -> bool:
        return self.question.is_right(self.answers[method].text)

    def same(self, method: Method) -> bool:
        """Whether the greedy answer is full prefill's, character by character."""
        return self.answers[method].text == self.answers[BASELINE].text

    def ratio(self, method: Method) -> float:
        """TTFT relative to full prefill of the same question."""
        return self.answers[method].ttft / self.answers[BASELINE].ttft


@dataclass(frozen=True)
class Figures:
    """What one method reached.

    Attributes:
        right: Number of right answers.
        same: Number of answers that are the same as full prefill's.
        ttft: Median time to first token at the client, in seconds.
        ratio: Median of the questions' TTFT relative to full prefill.
    """

    asked: int
    right: int
    same: int
    ttft: float
    ratio: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], method: Method) -> Figures:
        return cls(
            len(outcomes),
            sum(o.right(method) for o in outcomes),
            sum(o.same(method) for o in outcomes),
            median(o.answers[method].ttft for o in outcomes),
            median(o.ratio(method) for o in outcomes),
        )


def problems(outcomes: Sequence[Outcome], scenario: Scenario) -> list[str]:
    """Finds the reasons for which this demo run counts as failed; answerable questions decide.

    Returns:
        A sentence for each of: too few right answers with full prefill; clearly more or fewer right
        answers with the compared method. Empty where the run is fine.
    """
    judged = [outcome for outcome in outcomes if outcome.question.answerable]
    full = Figures.of(judged, BASELINE)
    compared = Figures.of(judged, scenario.compared)
    found = []
    if full.right < scenario.min_right * full.asked:
        found.append(f"only {full.right} of {full.asked} right with full prefill")
    if abs(full.right - compared.right) > scenario.max_difference * full.asked:
        name = scenario.compared.label
        found.append(f"{name} has {compared.right} right where full prefill has {full.right}")
    return found
