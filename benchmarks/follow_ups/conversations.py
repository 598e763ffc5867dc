"""Conversations of two questions about the demo's documents, made from its questions.

Every question is the second of a conversation; the first is another one, with its accepted answer.

    pronoun    both about one document; the second has a pronoun in the entity's place
    ellipsis   both about one document; the second leaves the entity out
    whole      both about one document; the second as it stands
    switch     about two documents; the second as it stands
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from benchmarks.follow_ups.entities import named_in, with_ellipsis, with_pronoun
from demo.questions import DemoQuestion, Split, read_demo_questions
from demo.scenario import QUESTIONS
from service.prompt import Turn

Form = Literal["pronoun", "ellipsis", "whole", "switch"]
FORMS: tuple[Form, ...] = get_args(Form)
SEED = 11
ASKED_KINDS = ("single", "reworded")


@dataclass(frozen=True)
class Conversation:
    """Attributes:
    form: how the second question depends on the first.
    turns: question, answer, question.
    whole: the second question as it would be asked alone.
    document: what holds its answer.
    answers: accepted ones.
    """

    form: Form
    turns: tuple[Turn, Turn, Turn]
    whole: str
    document: str
    answers: tuple[str, ...]

    def is_gold(self, doc_id: str, text: str) -> bool:
        """Whether a passage is of the document and holds an accepted answer as whole words."""
        if doc_id != self.document:
            return False
        return any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", text, re.I) for a in self.answers)


def conversations(split: Split) -> list[Conversation]:
    """All of a split, the same at every call."""
    asked = [q for q in read_demo_questions(QUESTIONS) if q.kind in ASKED_KINDS]
    # First questions name what they are about, and may be of either split: no answer is counted.
    firsts = [q for q in asked if named_in(q.question)]
    rng = random.Random(SEED)
    out: list[Conversation] = []
    for question in asked:
        same = [q for q in firsts if q.documents == question.documents and q != question]
        other = [q for q in firsts if q.documents != question.documents]
        before = rng.choice(same) if same else None
        elsewhere = rng.choice(other)
        if question.split == split:
            out += _of(question, before, elsewhere)
    return out


def _of(
    question: DemoQuestion, before: DemoQuestion | None, elsewhere: DemoQuestion
) -> Iterator[Conversation]:
    if before is not None:
        dependent: Sequence[tuple[Form, str | None]] = (
            ("pronoun", with_pronoun(question.question)),
            ("ellipsis", with_ellipsis(question.question)),
            ("whole", question.question),
        )
        for form, text in dependent:
            if text is not None:
                yield _conversation(form, before, question, text)
    yield _conversation("switch", elsewhere, question, question.question)


def _conversation(
    form: Form, before: DemoQuestion, question: DemoQuestion, text: str
) -> Conversation:
    turns = (
        Turn("user", before.question),
        Turn("assistant", f"{before.answers[0][0].upper()}{before.answers[0][1:]}."),
        Turn("user", text),
    )
    return Conversation(
        form, turns, question.question, question.documents[0], tuple(question.answers)
    )
