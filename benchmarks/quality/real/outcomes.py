"""What a record of the fidelity bench says about an answer on real text.

Right is what RULER and "Lost in the Middle" call right: an accepted answer occurs in the text, both
without case, punctuation and articles; of RULER's tasks that ask for several answers, the share
that occurs. The other scores compare with full prefill's answer to the same prompt, so they need no
accepted answers and say what a user would notice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fidelity.report.records import Record
from benchmarks.fidelity.report.summary import answer_kl
from benchmarks.quality.ruler.suite import TASKS
from benchmarks.quality.scores.edit import indel_ratio
from benchmarks.quality.scores.words import normalised_words, qa_f1
from tuning.prompts import Prompt

_ASKS_FOR_ALL = {name for name, task in TASKS.items() if task.metric == "string_match_all"}


@dataclass(frozen=True)
class Outcome:
    """One answer. Shares and scores are 0 to 1.

    Attributes:
        kl: KL(full prefill ‖ method) per token along full prefill's greedy answer, nats.
        kl_first: of the first token.
        kl_next: per token after the first; None if full prefill's answer has one token.
        right: an accepted answer occurs in the text, or the share of those that are asked for.
        right_of_full: the same, where full prefill has 1; else None.
        f1: of words, against the best accepted answer.
        same: the text is full prefill's.
        similar: indel ratio to full prefill's text, 1 if they are equal.
        agree: share of full prefill's tokens that are the most likely ones here too.
        flops: operations over full prefill's.
        rows: document rows recomputed, over the prompt's tokens.
    """

    kl: float
    kl_first: float
    kl_next: float | None
    right: float
    right_of_full: float | None
    f1: float
    same: float
    similar: float
    agree: float
    flops: float
    rows: float


def outcome(record: Record, prompt: Prompt) -> Outcome:
    """Scores of a record that holds both answers."""
    text, full = record.text or "", record.full_text or ""
    was_right = right(full, prompt)
    is_right = right(text, prompt)
    count = record.next_count
    later = 0.0 if record.agree_next is None else record.agree_next * count
    return Outcome(
        kl=answer_kl(record),
        kl_first=record.kl_first,
        kl_next=record.kl_next,
        right=is_right,
        right_of_full=is_right if was_right == 1 else None,
        f1=_best_f1(text, prompt.answers),
        same=float(text.strip() == full.strip()),
        similar=indel_ratio(text.strip(), full.strip()),
        agree=(record.agree_first + later) / (1 + count),
        flops=record.flops,
        rows=record.rows / record.tokens,
    )


def of_full_prefill(record: Record, prompt: Prompt) -> Outcome:
    """Full prefill's own outcome, from any record of the prompt."""
    full = record.full_text or ""
    is_right = right(full, prompt)
    f1 = _best_f1(full, prompt.answers)
    nothing = 0.0 if record.next_count else None
    known = 1.0 if is_right == 1 else None
    return Outcome(0.0, 0.0, nothing, is_right, known, f1, 1.0, 1.0, 1.0, 1.0, math.nan)


def right(text: str, prompt: Prompt) -> float:
    """Whether the words of an accepted answer occur in the text, one after the other, 0 or 1; for
    tasks that ask for all answers the share that occurs."""
    said = f" {' '.join(normalised_words(text))} "
    wanted = [" ".join(normalised_words(answer)) for answer in prompt.answers]
    found = [f" {answer} " in said for answer in wanted if answer]
    if prompt.task in _ASKS_FOR_ALL:
        return sum(found) / len(found)
    return float(any(found))


def _best_f1(text: str, answers: Sequence[str]) -> float:
    return max((qa_f1(text, answer) for answer in answers), default=0.0)
