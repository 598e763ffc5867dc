"""Conversations about the demo's documents, made from its questions.

Every question is the last of a conversation; before it stand others, with accepted answers.

    pronoun    two questions about one document; the last has a pronoun in the entity's place
    later      three about one document; the last two have a pronoun in the entity's place
    ellipsis   two about one document; the last leaves the entity out
    whole      two about one document; the last as it stands
    switch     two about two documents; the last as it stands
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from benchmarks.follow_ups.entities import named_in, with_ellipsis, with_pronoun
from demo.questions import DemoQuestion, Split, read_demo_questions
from demo.scenario import QUESTIONS
from service.prompt import Turn

Form = Literal["pronoun", "later", "ellipsis", "whole", "switch"]
FORMS: tuple[Form, ...] = get_args(Form)
SEED = 11
ASKED_KINDS = ("single", "reworded")


@dataclass(frozen=True)
class Conversation:
    """Attributes:
    form: how the last question depends on those before it.
    turns: questions and answers; the last one is a question.
    whole: the last question as it would be asked alone.
    document: what holds its answer.
    answers: accepted ones.
    """

    form: Form
    turns: tuple[Turn, ...]
    whole: str
    document: str
    answers: tuple[str, ...]

    def is_gold(self, doc_id: str, text: str) -> bool:
        """Whether a passage is of the document and holds an accepted answer."""
        return doc_id == self.document and DemoQuestion("", self.answers, ()).is_right(text)


def conversations(split: Split) -> list[Conversation]:
    """All of a split, the same at every call."""
    asked = [q for q in read_demo_questions(QUESTIONS) if q.kind in ASKED_KINDS]
    # Earlier questions name what they are about, and may be of either split: only the last one is
    # searched for.
    named = [q for q in asked if named_in(q.question)]
    out: list[Conversation] = []
    for question in asked:
        rng = random.Random(f"{SEED} {question.question}")
        same = [q for q in named if q.documents == question.documents and q != question]
        other = [q for q in named if q.documents != question.documents]
        rng.shuffle(same)
        if question.split == split:
            out += _of(question, same, rng.choice(other))
    return out


def _of(
    question: DemoQuestion, same: Sequence[DemoQuestion], other: DemoQuestion
) -> Iterator[Conversation]:
    text = question.question
    pronoun, ellipsis = with_pronoun(text), with_ellipsis(text)
    if same:
        if pronoun is not None:
            yield _conversation("pronoun", question, [_said(same[0])], pronoun)
        if pronoun is not None and len(same) > 1:
            between = (with_pronoun(same[1].question) or "", same[1].answers[0])
            yield _conversation("later", question, [_said(same[0]), between], pronoun)
        if ellipsis is not None:
            yield _conversation("ellipsis", question, [_said(same[0])], ellipsis)
        yield _conversation("whole", question, [_said(same[0])], text)
    yield _conversation("switch", question, [_said(other)], text)


def _said(question: DemoQuestion) -> tuple[str, str]:
    return question.question, question.answers[0]


def _conversation(
    form: Form, question: DemoQuestion, before: Sequence[tuple[str, str]], text: str
) -> Conversation:
    turns = []
    for asked, answer in before:
        turns += [Turn("user", asked), Turn("assistant", f"{answer[0].upper()}{answer[1:]}.")]
    return Conversation(
        form=form,
        turns=(*turns, Turn("user", text)),
        whole=question.question,
        document=question.documents[0],
        answers=question.answers,
    )
