"""Natural Questions: the passage that holds the answer among the passages that a retriever would
return beside it, as in "Lost in the Middle" (Liu et al., 2023).

Distractors are the passages nearest to the question that hold none of its accepted answers, from
the passages of the same split. The order is random by seed, question and number of distractors, so
the gold passage stands anywhere. Parameters are chosen on "dev", tables are made on "test".
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.quality.tasks.retrieved import Embed, Passage, nearest

_DATA = Path(__file__).resolve().parents[1] / "data"


@dataclass(frozen=True)
class Asked:
    """A question of the data set with the one passage that answers it."""

    id: str
    question: str
    answers: tuple[str, ...]
    passage: Passage


@dataclass(frozen=True)
class Retrieved:
    """A question with its passages in the order of the prompt; `gold` is the answering one's."""

    asked: Asked
    passages: tuple[Passage, ...]
    gold: int


def ends(ranked: list[Passage]) -> list[Passage]:
    """The best passage first, the second last, and so on towards the middle."""
    return [*ranked[::2], *ranked[1::2][::-1]]


ORDERS: dict[str, Callable[[list[Passage]], list[Passage]]] = {
    "random": list,
    "best_first": list,
    "best_last": lambda ranked: ranked[::-1],
    "ends": ends,
}
"""Where the passages of a prompt stand, the nearest of which come first in what is given."""


@cache
def load(split: str) -> tuple[Asked, ...]:
    """All questions of a split, in the order of the file."""
    with gzip.open(_DATA / f"nq_{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return tuple(_asked(json.loads(line)) for line in lines)


def _asked(raw: dict[str, str | list[str]]) -> Asked:
    passage = Passage(str(raw["title"]), str(raw["text"]))
    return Asked(str(raw["id"]), str(raw["question"]), tuple(raw["answers"]), passage)


def retrieve(
    asked: Sequence[Asked],
    embed: Embed,
    *,
    others: int,
    samples: int,
    seed: int,
    order: str = "random",
) -> Iterator[Retrieved]:
    """The first `samples` questions, each with `others` distractors from all of `asked`.

    A prompt depends only on the split, seed, `others` and `order`, which is one of `ORDERS`: more
    samples keep the first ones.
    """
    pool = list(dict.fromkeys(each.passage for each in asked))
    chosen = asked[:samples]
    ranked = nearest([each.question for each in chosen], pool, embed)
    for each, ranking in zip(chosen, ranked, strict=True):
        distractors = [p for p in ranking if p != each.passage and not _holds(p, each.answers)]
        passages = [each.passage, *distractors[:others]]
        if order == "random":
            random.Random(f"{seed} {each.id} {others}").shuffle(passages)
        else:
            best_first = sorted(passages, key=ranking.index)
            passages = ORDERS[order](best_first)
        yield Retrieved(each, tuple(passages), passages.index(each.passage))


def _holds(passage: Passage, answers: Sequence[str]) -> bool:
    text = f"{passage.title} {passage.text}".lower()
    return any(answer.lower() in text for answer in answers)
