"""What a record says about an answer on real text.

Right is what "Lost in the Middle" calls right: an accepted answer occurs in the text, both without
case, punctuation and articles. The other scores compare with full prefill's answer to the same
prompt, so they need no accepted answers and say what a user would notice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from benchmarks.quality.records import Record
from benchmarks.quality.texts import indel_ratio, normalised_words, qa_f1
from kvstitch_tune.prompts import Prompt


@dataclass(frozen=True)
class Outcome:
    """One answer. Shares and scores are 0 to 1.

    Attributes:
        kl: KL(full prefill ‖ method) per token along full prefill's greedy answer, nats.
        kl_first: of the first token.
        kl_next: per token after the first; None if full prefill's answer has one token.
        right: an accepted answer occurs in the text.
        right_of_full: the same, where full prefill has 1; else None.
        exact: the text is an accepted answer and nothing else.
        f1: of words, against the best accepted answer.
        same: the text is full prefill's.
        before_difference: words of full prefill's text before the first that differs, over all of
            its words; a long answer that turns at its end counts for more than one that never met.
        similar: indel ratio to full prefill's text, 1 if they are equal.
        agree: share of full prefill's tokens that are the most likely ones here too.
        flops: operations over full prefill's.
        rows: document rows recomputed, over the prompt's tokens.
        seconds: of the prefill over full prefill's; None where they were not recorded.
        lead: of the record.
    """

    kl: float
    kl_first: float
    kl_next: float | None
    right: float
    right_of_full: float | None
    exact: float
    f1: float
    same: float
    before_difference: float
    similar: float
    agree: float
    flops: float
    rows: float
    seconds: float | None
    lead: float | None


def outcome(record: Record, prompt: Prompt) -> Outcome:
    """Scores of a record that holds both answers."""
    text, full = record.text or "", record.full_text or ""
    was_right = right(full, prompt)
    is_right = right(text, prompt)
    count = record.next_count
    later = 0.0 if record.agree_next is None else record.agree_next * count
    return Outcome(
        kl=record.kl,
        kl_first=record.kl_first,
        kl_next=record.kl_next,
        right=is_right,
        right_of_full=is_right if was_right == 1 else None,
        exact=_exact(text, prompt.answers),
        f1=_best_f1(text, prompt.answers),
        same=float(text.strip() == full.strip()),
        before_difference=_before_difference(text.split(), full.split()),
        similar=indel_ratio(text.strip(), full.strip()),
        agree=(record.agree_first + later) / (1 + count),
        flops=record.flops,
        rows=record.rows / record.tokens,
        seconds=record.seconds / record.full_seconds if record.full_seconds else None,
        lead=record.lead,
    )


def of_full_prefill(record: Record, prompt: Prompt) -> Outcome:
    """Full prefill's own outcome, from any record of the prompt."""
    full = record.full_text or ""
    is_right = right(full, prompt)
    return Outcome(
        kl=0.0,
        kl_first=0.0,
        kl_next=0.0 if record.next_count else None,
        right=is_right,
        right_of_full=1.0 if is_right == 1 else None,
        exact=_exact(full, prompt.answers),
        f1=_best_f1(full, prompt.answers),
        same=1.0,
        before_difference=1.0,
        similar=1.0,
        agree=1.0,
        flops=1.0,
        rows=math.nan,
        seconds=1.0 if record.full_seconds else None,
        lead=None,
    )


def right(text: str, prompt: Prompt) -> float:
    """Whether the words of an accepted answer occur in the text, one after the other, 0 or 1."""
    return float(any(occurring(text, prompt.answers)))


def occurring(text: str, answers: Sequence[str]) -> list[bool]:
    """Whether the words of each answer that has any occur in the text, one after the other."""
    said = f" {' '.join(normalised_words(text))} "
    wanted = [" ".join(normalised_words(answer)) for answer in answers]
    return [f" {answer} " in said for answer in wanted if answer]


def _exact(text: str, answers: Sequence[str]) -> float:
    said = normalised_words(text)
    return float(any(said == normalised_words(answer) for answer in answers))


def _before_difference(said: Sequence[str], full: Sequence[str]) -> float:
    if said == full:
        return 1.0
    common = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(said, full, strict=False))
    )
    return common / max(len(full), 1)


def _best_f1(text: str, answers: Sequence[str]) -> float:
    return max((qa_f1(text, answer) for answer in answers), default=0.0)
