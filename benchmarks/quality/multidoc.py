"""Our own suite: the demo language's tasks, question answering over several documents.

Splits are seeds: what is tuned is tuned on `DEVELOPMENT`, tables are made on `TEST`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.quality.sample import TextSample
from demo import tasks
from demo.vocabulary import QUESTION, SYSTEM

DEVELOPMENT = (101, 102)
TEST = (1, 2, 3)
ANSWER_TOKENS = 32
CHUNK_TOKENS = 48
"""The demo model's contexts have 150 to 500 tokens; chunks of this size cut their sentences."""


def generate(
    names: Sequence[str], *, seeds: Sequence[int], samples: int, held_out: bool = True
) -> Iterator[TextSample]:
    """`samples` of every task from each seed, seeds and tasks in turn, so that a run cut short has
    some of all. A sample depends on seed, task and number only."""
    for number in range(samples):
        for seed in seeds:
            for name in names:
                yield _one(name, seed, number, held_out)


def _one(name: str, seed: int, number: int, held_out: bool) -> TextSample:
    drawn = tasks.sample(name, random.Random(f"{seed} {name} {number}"), held_out=held_out)
    return TextSample(
        suite="multidoc",
        task=name,
        number=number,
        instruction=SYSTEM,
        context=drawn.context,
        question=QUESTION.format(question=drawn.question),
        references=drawn.answers,
        metric="exact",
        answer_tokens=ANSWER_TOKENS,
        chat=False,
        details={"seed": seed},
    )
