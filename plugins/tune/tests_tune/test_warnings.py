"""A prefix mode that does harm is told, and only then."""

from __future__ import annotations

from collections.abc import Sequence

from kvstitch_tune.candidates import Candidate
from kvstitch_tune.report import warnings
from kvstitch_tune.stages import Stage
from kvstitch_tune.statistics import Bootstrap, Summary
from kvstitch_tune.trial import Trial

PROMPTS = 8


def measured(
    mode: str, kl: float | Sequence[float], method: str = "pie", codec: str = "raw"
) -> Summary:
    """A candidate on as many prompts as there are values, or on `PROMPTS` of the same one."""
    values = [kl] * PROMPTS if isinstance(kl, float) else kl
    trials = [
        Trial(
            prompt=str(number), configuration=f"{method} {mode}", tokens=9, answer_tokens=3,
            kl_first=each, kl=each, agree_first=1, agreement=1, same=1, lead=1,
            operations=0.1, seconds=1, full_seconds=2, bytes=9, kept=1,
        )
        for number, each in enumerate(values)
    ]  # fmt: skip
    return Summary.of(Candidate(method, (), mode, codec), trials, Bootstrap(len(trials)))


def told(*summaries: Summary, stage: str = "prefix") -> list[str]:
    return warnings([Stage("screen", PROMPTS, []), Stage(stage, PROMPTS, list(summaries))])


def test_harm_is_told_with_both_figures() -> None:
    modes = {"system": 0.10, "primer": 0.16, "neighbours": 0.08, "none": 0.4}
    [text] = told(*(measured(mode, kl) for mode, kl in modes.items()))
    assert text.startswith("prefix_mode primer does harm on these documents: KL 0.16 nats")
    assert "behind the system prompt alone 0.1 (mean of 1 configurations on 8 prompts)" in text
    assert "use system" in text


def test_one_prompt_that_is_far_off_is_no_harm() -> None:
    """The mean is worse for it; seven of eight prompts are better."""
    primer = [0.05] * 7 + [1.0]
    assert told(measured("system", 0.1), measured("primer", primer)) == []
    [text] = told(measured("system", 0.1), measured("primer", [0.15] * 7 + [1.0]))
    assert "KL 0.256" in text


def test_only_the_same_configuration_is_compared() -> None:
    """PIE behind primers beside a better method behind S says nothing about primers."""
    better = measured("system", 0.05, "question_scout")
    assert told(better, measured("primer", 0.16), measured("system", 0.2)) == []
    assert told(measured("system", 0.1, codec="int4"), measured("primer", 0.16)) == []
    mixed = [
        *(measured("system", kl, m) for m, kl in (("pie", 0.2), ("a3", 0.1))),
        *(measured("primer", kl, m) for m, kl in (("pie", 0.1), ("a3", 0.15))),
    ]
    assert told(*mixed) == [], "on average it helps"


def test_only_prompts_of_both_are_compared() -> None:
    """What was dropped early has fewer prompts."""
    easy = measured("primer", [0.05] * 2)
    assert told(measured("system", [0.06] * 2 + [0.01] * 6), easy) == []


def test_nothing_compared_is_nothing_told() -> None:
    assert told(measured("system", 0.1), measured("primer", 0.2), stage="screen") == []
    assert warnings([]) == []
