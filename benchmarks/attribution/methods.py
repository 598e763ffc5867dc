"""Ways to say which passage a sentence of an answer is from: each gives every passage a score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.attribution.asking import Case
from benchmarks.attribution.attention import AnswerAttention
from benchmarks.quality.tasks.retrieved import Embed
from service.gateway.api import SupportScorer, sentences

Scores = Sequence[float]
Method = Callable[[Case, range], Scores]


def methods(folder: Path, embed: Embed) -> dict[str, Method]:
    """By name."""
    attention = AnswerAttention(folder)
    begun = attention.answer_prefix

    def own(case: Case, span: range) -> str:
        text = case.text[span.start : span.stop]
        return text.removeprefix(begun).strip() if span.start == 0 else text

    def nearest_to_question(case: Case, span: range) -> Scores:
        return _cosines(embed, case.question, [_whole(case, n) for n in _numbers(case)])

    def words(case: Case, span: range) -> Scores:
        scorer = SupportScorer([(p.title, p.text) for p in case.passages], case.question)
        return [support.score for support in scorer.scores(own(case, span))]

    def cosine_of_passages(case: Case, span: range) -> Scores:
        return _cosines(embed, own(case, span), [_whole(case, n) for n in _numbers(case)])

    def cosine_of_sentences(case: Case, span: range) -> Scores:
        texts, owners = [], []
        for number, passage in enumerate(case.passages):
            for piece in sentences(passage.text) or [range(len(passage.text))]:
                texts.append(passage.text[piece.start : piece.stop])
                owners.append(number)
        found = _cosines(embed, own(case, span), texts)
        return [
            max(s for s, o in zip(found, owners, strict=True) if o == n) for n in _numbers(case)
        ]

    def attention_of_all(case: Case, span: range) -> Scores:
        return [float(share) for share in attention.shares(case, span).mean(dim=0)]

    def attention_of_middle(case: Case, span: range) -> Scores:
        """Of the middle third of the layers. Not timed: the other one's pass is used again."""
        shares = attention.shares(case, span)
        layers = len(shares)
        return [float(share) for share in shares[layers // 3 : 2 * layers // 3].mean(dim=0)]

    return {
        "nearest to the question": nearest_to_question,
        "words": words,
        "cosine of passages": cosine_of_passages,
        "cosine of sentences": cosine_of_sentences,
        "attention, all layers": attention_of_all,
        "attention, middle layers": attention_of_middle,
    }


def _numbers(case: Case) -> range:
    return range(len(case.passages))


def _whole(case: Case, number: int) -> str:
    passage = case.passages[number]
    return f"{passage.title}\n{passage.text}"


def _cosines(embed: Embed, text: str, others: Sequence[str]) -> list[float]:
    vectors = embed([text, *others])
    return [float(score) for score in np.asarray(vectors[1:]) @ np.asarray(vectors[0])]
