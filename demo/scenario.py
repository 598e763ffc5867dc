"""What the demo serves, ingests and asks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.client import Answer, Client
from demo.corpus_files import CorpusDocument, read_documents
from demo.questions import DemoQuestion, read_demo_questions

WORLD = Path(__file__).parent / "world"
QUESTIONS = WORLD / "questions.jsonl"
SEED = 7
FULL = "vanilla"
"""Full prefill, with which the service's default is compared."""
SERVED = ("--chunk-tokens", "512", "--top-k", "5")
"""The service's own defaults; SmolLM2's folder has shorter passages."""
REQUEST: dict[str, Any] = {"max_tokens": 48, "stop": ["\n", ". "]}


@dataclass(frozen=True)
class Drawn:
    """Questions that one run asks."""

    warm_up: DemoQuestion
    race: DemoQuestion
    asked: list[DemoQuestion]


def documents() -> list[CorpusDocument]:
    return read_documents(WORLD / "pages")


def single_facts() -> list[DemoQuestion]:
    """The answerable questions of one fact; at comparisons so small a model as SmolLM2 guesses."""
    questions = read_demo_questions(QUESTIONS)
    return [q for q in questions if q.answerable and q.kind != "comparison"]


def draw(count: int | None) -> Drawn:
    """Draws from these with a fixed seed; None: `asked` is every question there is."""
    pool = single_facts()
    warm_up, race, *drawn = random.Random(SEED).sample(pool, min((count or 0) + 2, len(pool)))
    return Drawn(warm_up, race, read_demo_questions(QUESTIONS) if count is None else drawn)


@dataclass(frozen=True)
class Outcome:
    """One question, answered by full prefill and by the service's default."""

    question: DemoQuestion
    full: Answer
    ours: Answer

    @property
    def same(self) -> bool:
        """Whether the greedy answer is full prefill's, character by character."""
        return self.ours.text == self.full.text

    @property
    def ratio(self) -> float:
        return self.ours.ttft / self.full.ttft


def ask(client: Client, question: str, method: str | None, **more: Any) -> Answer:
    return client.ask(question, method, **(REQUEST | more))


def ask_both(client: Client, question: DemoQuestion, index: int) -> Outcome:
    """Asks by both ways; which comes first changes from question to question."""
    order = (FULL, None) if index % 2 == 0 else (None, FULL)
    answers = {method: ask(client, question.question, method) for method in order}
    return Outcome(question, answers[FULL], answers[None])
