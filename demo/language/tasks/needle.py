"""RULER's needles in a haystack, in RULER's wording: several keys, one or more of them queried.

Differs from RULER in its keys, which are invented names, in its much shorter haystacks, and in
the numbers of the tasks with several answers, which have four digits instead of seven.
"""

from __future__ import annotations

import random
from itertools import pairwise

from demo.language.grammar import make_document, make_entity
from demo.language.kinds import KINDS
from demo.language.tasks.story import Asked, Hint, Story, draw_names, records
from demo.language.wording import NEEDLE, NEEDLE_QUESTION, NEEDLES_QUESTION, NOISE

NOISE_LINES = 5
VALUES = 3
PROSE_SHARE = 0.5
PROSE_DOCUMENTS = 3
LATER_DIGITS = "34"
"""Stands for the third and fourth digit of a number, which are not in its first token."""


def niah(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Seven-digit numbers for `entities` + 2 keys."""
    lines, asked = [], []
    for name in draw_names(rng, held_out, entities + 2):
        number = str(rng.randint(1_000_000, 9_999_999))
        lines.append(NEEDLE.format(n=name, v=number))
        where = (lines[-1].removesuffix("."),)
        asked.append(Asked(NEEDLE_QUESTION.format(n=name), number, where=where))
    lines += [NOISE] * NOISE_LINES
    rng.shuffle(lines)
    return Story(records(rng, lines, 1), tuple(asked))


def niah_prose(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Seven-digit numbers for `entities` - 1 keys, between sentences about other entities.

    Stands in for RULER's essays, whose words this vocabulary would spell out byte by byte.
    """
    names = draw_names(rng, held_out, entities - 1 + PROSE_DOCUMENTS)
    asked, needles = [], []
    for name in names[PROSE_DOCUMENTS:]:
        number = str(rng.randint(1_000_000, 9_999_999))
        needles.append(NEEDLE.format(n=name, v=number))
        where = (needles[-1].removesuffix("."),)
        asked.append(Asked(NEEDLE_QUESTION.format(n=name), number, where=where))
    lines = _among(rng, _prose(rng, names[:PROSE_DOCUMENTS]), needles)
    return Story(records(rng, lines, 1), tuple(asked))


def niah_multivalue(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Three numbers for each of `entities` - 2 keys; the question asks for all three of a key."""
    keys = max(2, entities - 2)
    names = draw_names(rng, held_out, keys + PROSE_DOCUMENTS)
    numbers = iter(_numbers(rng, keys * VALUES))
    needles = [(name, next(numbers)) for name in names[PROSE_DOCUMENTS:] for _ in range(VALUES)]
    rng.shuffle(needles)
    asked, hints = [], []
    for name in names[PROSE_DOCUMENTS:]:
        own = [needle for needle in needles if needle[0] == name]
        asked.append(_ask_all(NEEDLES_QUESTION.format(n=name), own))
        for before, needle in pairwise(own):
            source = _stated(before)[: -len(LATER_DIGITS)]
            hints.append(Hint(_stated(needle), source, before[1]))
    context = _haystack(rng, names[:PROSE_DOCUMENTS], needles)
    clear = tuple(hint for hint in hints if context.count(hint.source) == 1)
    return Story(context, tuple(asked), clear)


def niah_multiquery(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Numbers for `entities` + 1 keys; a question asks for two or three keys at once."""
    names = draw_names(rng, held_out, entities + 1 + PROSE_DOCUMENTS)
    keys = names[PROSE_DOCUMENTS:]
    needles = list(zip(keys, _numbers(rng, len(keys)), strict=True))
    rng.shuffle(needles)
    asked = []
    for _ in keys:
        queried = rng.sample(needles, rng.randint(2, 3))
        *others, last = (name for name, _ in queried)
        named = f"{', '.join(others)}, and {last}"
        asked.append(_ask_all(NEEDLES_QUESTION.format(n=named), queried))
    return Story(_haystack(rng, names[:PROSE_DOCUMENTS], needles), tuple(asked))


def _ask_all(question: str, needles: list[tuple[str, str]]) -> Asked:
    where = tuple(_stated(needle) for needle in needles)
    return Asked(question, ", ".join(number for _, number in needles), where=where)


def _stated(needle: tuple[str, str]) -> str:
    name, number = needle
    return NEEDLE.format(n=name, v=number).removesuffix(".")


def _numbers(rng: random.Random, count: int) -> list[str]:
    """Distinct four-digit numbers that are not years, of two tokens each."""
    return [str(number) for number in rng.sample(range(2000, 10_000), count)]


def _haystack(rng: random.Random, names: list[str], needles: list[tuple[str, str]]) -> str:
    """RULER's noise, or prose about `names`, with the needles inserted in this order."""
    straw = [NOISE] * NOISE_LINES if rng.random() >= PROSE_SHARE else _prose(rng, names)
    stated = [NEEDLE.format(n=name, v=number) for name, number in needles]
    return records(rng, _among(rng, straw, stated), 1)


def _prose(rng: random.Random, names: list[str]) -> list[str]:
    """Sentences about the entities of these names, document by document."""
    entities = [make_entity(rng, rng.choice(list(KINDS)), name) for name in names]
    return [line for each in entities for line in make_document(rng, each, 5).sentences]


def _among(rng: random.Random, straw: list[str], needles: list[str]) -> list[str]:
    """Inserts needles at random places between the other lines; both keep their order."""
    turns = [True] * len(needles) + [False] * len(straw)
    rng.shuffle(turns)
    found, rest = iter(needles), iter(straw)
    return [next(found) if needle else next(rest) for needle in turns]
