"""What a task is made of: a context, and every question that can be asked of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from demo.language import words
from demo.language.grammar import Document, open_names
from demo.language.vocabulary import DOCUMENT
from demo.language.wording import RECORD

LOOKALIKE_SHARE = 0.3


@dataclass(frozen=True)
class Asked:
    """A question and its answer as it is written.

    `scored` is false for questions that are easier than the task means to be: they are trained
    on, and never sampled. `where` is for training alone: texts at whose ends, where they first
    stand in the context, the parts of the answer are to be had.
    """

    question: str
    answer: str
    scored: bool = True
    where: tuple[str, ...] = ()


SUBJECT = 2
"""Depth of hints that say whom a statement is about."""


@dataclass(frozen=True)
class Hint:
    """For training alone: what is to be known when `at` has been read, and from where.

    Of both texts the first in the context counts. The end of `at` is to look at the end of
    `source` and to know how `tells` begins. So statements are connected while they are
    read, as large models do, instead of when they are asked for. `depth` 1 needs a hint of depth
    0 first; `SUBJECT` comes before both.
    """

    at: str
    source: str
    tells: str
    depth: int = 0


@dataclass(frozen=True)
class Story:
    """Several documents one after another, and the questions they answer."""

    context: str
    asked: tuple[Asked, ...]
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True)
class Task:
    """`write(rng, held_out, entities)` draws a story about so many rivals."""

    name: str
    about: str
    write: Callable[[random.Random, bool, int], Story]
    entities: int = 5
    """Rivals in a sampled story; training starts with fewer."""


def join(documents: list[Document]) -> str:
    return "".join(DOCUMENT.format(title=d.title, text=d.text) for d in documents)


def records(rng: random.Random, sentences: list[str], count: int) -> str:
    """The sentences in this order, cut into `count` documents at random places."""
    borders = sorted(rng.sample(range(1, len(sentences)), count - 1))
    parts = zip([0, *borders], [*borders, len(sentences)], strict=True)
    return "".join(DOCUMENT.format(title=RECORD, text=" ".join(sentences[a:b])) for a, b in parts)


def draw_names(rng: random.Random, held_out: bool, count: int) -> list[str]:
    """Distinct open names; at times all of them share a syllable."""
    pool = _names(held_out)
    if rng.random() < LOOKALIKE_SHARE:
        syllable = rng.choice(words.SYLLABLES_FIRST + words.SYLLABLES_LAST)
        alike = [n for n in pool if n.startswith(syllable) or n.endswith(syllable)]
        if len(alike) >= count:
            return rng.sample(alike, count)
    return rng.sample(pool, count)


def merged(rng: random.Random, sequences: list[list[str]]) -> list[str]:
    """All items of all sequences in random order, each sequence's own order kept."""
    turns = [i for i, sequence in enumerate(sequences) for _ in sequence]
    rng.shuffle(turns)
    heads = [iter(sequence) for sequence in sequences]
    return [next(heads[turn]) for turn in turns]


def sentence_case(text: str) -> str:
    return text[0].upper() + text[1:]


@cache
def _names(held_out: bool) -> tuple[str, ...]:
    return tuple(open_names(held_out))
