"""Prose about an invented county: the documents that answer a question, among the nearest others.

Questions that the documents do not answer are left out, because there is no accepted answer to look
for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.quality.tasks.retrieved import Embed, Passage, nearest
from demo.questions import DemoQuestion, read_demo_questions

FOLDER = Path(__file__).resolve().parents[1] / "data" / "prose"
_NAMES = {"dev": "development", "test": "test"}


def load(split: str) -> list[DemoQuestion]:
    """The answerable questions of "dev" or "test"."""
    asked = read_demo_questions(FOLDER / "questions.jsonl")
    return [q for q in asked if q.split == _NAMES[split] and q.answers]


def documents() -> dict[str, Passage]:
    """The corpus by the documents' ids; a document's first line is its title."""
    found = {}
    for path in sorted((FOLDER / "documents").glob("*.md")):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        found[path.stem] = Passage(title.lstrip("# ").strip(), text.strip())
    return found


def retrieve(
    split: str, embed: Embed, *, others: int
) -> Iterator[tuple[DemoQuestion, list[Passage]]]:
    """Each question with the documents that answer it and the `others` nearest, in random order."""
    corpus, asked = documents(), load(split)
    ranked = nearest([q.question for q in asked], list(corpus.values()), embed)
    for question, ranking in zip(asked, ranked, strict=True):
        gold = [corpus[name] for name in question.documents]
        passages = [*gold, *[p for p in ranking if p not in gold][:others]]
        random.Random(f"{question.question} {others}").shuffle(passages)
        yield question, passages
