"""Question answering: the documents with the answer, among documents of other questions.

Reads the published files of SQuAD 2.0 and HotpotQA, as RULER does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.quality.ruler.draft import Draft, Drafter, Setting
from benchmarks.quality.ruler.words import distinct
from service.errors import InvalidRequest

SQUAD = ("dev-v2.0.json", "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json")
HOTPOTQA = (
    "hotpot_dev_distractor_v1.json",
    "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
)
_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words.\n\nThe following are given documents.\n\n"
)
_QUESTION = (
    "\n\nAnswer the question based on the given documents. Only give me the answer and do not "
    "output any other words.\n\nQuestion: {query}"
)


@dataclass(frozen=True)
class Question:
    """A question. `near` are its first distractors: from the same article, or made for it."""

    query: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...]


Reader = Callable[[Any], list[Question]]


def squad(published: Any) -> list[Question]:
    """The questions of SQuAD that have an answer."""
    return [
        Question(
            question["question"],
            tuple(dict.fromkeys(answer["text"] for answer in question["answers"])),
            (paragraph["context"],),
            tuple(p["context"] for p in article["paragraphs"] if p is not paragraph),
        )
        for article in published["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
        if not question.get("is_impossible", False)
    ]


def hotpotqa(published: Any) -> list[Question]:
    questions = []
    for row in published:
        supporting = {title for title, _ in row["supporting_facts"]}
        gold, near = list[str](), list[str]()
        for title, sentences in row["context"]:
            (gold if title in supporting else near).append(f"{title}\n{''.join(sentences)}")
        questions.append(Question(row["question"], (row["answer"],), tuple(gold), tuple(near)))
    return questions


def prepare(file: tuple[str, str], read: Reader, setting: Setting) -> Drafter:
    """Makes drafts from a published file.

    Raises:
        InvalidRequest: the file is missing, or has another format.
    """
    name, source = file
    path = setting.data and setting.data / name
    if path is None or not path.is_file():
        where = f"not in {setting.data}" if setting.data else "no folder of data was given"
        raise InvalidRequest(f"{name} is needed, and {where}; it is at {source}", field="data")
    questions = _questions(path, source, read)
    documents = sorted({text for question in questions for text in question.gold + question.near})
    return partial(_draft, questions, documents)


def _questions(path: Path, source: str, read: Reader) -> list[Question]:
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"{path} is not in the format of {source} ({type(error).__name__}: {error})",
            field="data",
        ) from error


def _draft(
    questions: list[Question], documents: list[str], number: int, rng: random.Random
) -> Draft:
    """A draft of the question with that number in the file; its size is the number of documents."""
    if number >= len(questions):
        raise InvalidRequest(f"there are only {len(questions)} questions", field="samples")
    question = questions[number]
    near = sorted(set(question.near) - set(question.gold))
    rng.shuffle(near)
    chosen = [*question.gold, *near]
    taken = set(chosen)
    others = (text for text in distinct(lambda: rng.choice(documents)) if text not in taken)
    order = rng.getrandbits(64)

    def context(size: int) -> str:
        chosen.extend(islice(others, max(0, size - len(chosen))))
        shown = chosen[:size]
        random.Random(order).shuffle(shown)
        return "\n\n".join(f"Document {n}:\n{text}" for n, text in enumerate(shown, 1))

    return Draft(
        _INSTRUCTION,
        context,
        _QUESTION.format(query=question.query),
        " Answer:",
        question.answers,
        smallest=len(question.gold),
        most=len(documents),
    )
