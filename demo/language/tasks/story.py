"""What a task is made of: a context, and the questions that can be asked about it."""

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
    """A question and its answer.

    Attributes:
        scored: False for questions that are easier than the task is meant to be; the model is
            trained on them, but they are never sampled.
        where: For training only: texts of the context. The first occurrence of each ends where one
            part of the answer can be known.
    """

    question: str
    answer: str
    scored: bool = True
    where: tuple[str, ...] = ()


SUBJECT = 2
"""`depth` of hints that say whom a statement is about."""


@dataclass(frozen=True)
class Hint:
    """For training only: what the model should know once it has read a text, and from where.

    Hints teach the model to connect statements while it reads them, as large models do, and not
    only when a question comes. Of each text the first occurrence in the context counts.

    Attributes:
        at: When the model has read this text, it should know `tells`.
        source: The token that ends `at` should attend to the token that ends this text.
        tells: What should be known; only its first token is trained.
        depth: 0 for a direct reference, 1 for one that builds on a hint of depth 0, `SUBJECT` for
            whom a statement is about, which comes before both.
    """

    at: str
    source: str
    tells: str
    depth: int = 0


@dataclass(frozen=True)
class Story:
    """Several documents, joined to one context, and the questions that they answer."""

    context: str
    asked: tuple[Asked, ...]
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True)
class Task:
    """A kind of story.

    Attributes:
        about: What the task asks, in a few words.
        write: `write(rng, held_out, entities)` draws a story about so many entities.
        entities: Entities in a sampled story; training starts with fewer.
    """

    name: str
    about: str
    write: Callable[[random.Random, bool, int], Story]
    entities: int = 5


def join(documents: list[Document]) -> str:
    return "".join(DOCUMENT.format(title=d.title, text=d.text) for d in documents)


def records(rng: random.Random, sentences: list[str], count: int) -> str:
    """Cuts sentences, in this order, into `count` documents at random places."""
    borders = sorted(rng.sample(range(1, len(sentences)), count - 1))
    parts = zip([0, *borders], [*borders, len(sentences)], strict=True)
    return "".join(DOCUMENT.format(title=RECORD, text=" ".join(sentences[a:b])) for a, b in parts)


def draw_names(rng: random.Random, held_out: bool, count: int) -> list[str]:
    """Draws distinct open names; sometimes all of them share a syllable."""
    pool = _names(held_out)
    if rng.random() < LOOKALIKE_SHARE:
        syllable = rng.choice(words.SYLLABLES_FIRST + words.SYLLABLES_LAST)
        alike = [n for n in pool if n.startswith(syllable) or n.endswith(syllable)]
        if len(alike) >= count:
            return rng.sample(alike, count)
    return rng.sample(pool, count)


def merged(rng: random.Random, sequences: list[list[str]]) -> list[str]:
    """Interleaves sequences at random; each keeps its own order."""
    turns = [i for i, sequence in enumerate(sequences) for _ in sequence]
    rng.shuffle(turns)
    heads = [iter(sequence) for sequence in sequences]
    return [next(heads[turn]) for turn in turns]


def sentence_case(text: str) -> str:
    return text[0].upper() + text[1:]


@cache
def _names(held_out: bool) -> tuple[str, ...]:
    return tuple(open_names(held_out))
