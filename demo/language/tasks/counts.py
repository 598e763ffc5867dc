"""RULER's aggregation tasks, made small: which words occur most often."""

from __future__ import annotations

import random

from demo.language import words
from demo.language.tasks.story import Asked, Story, draw_names, records
from demo.language.wording import COMMON_QUESTION, FREQUENT_QUESTION

COMMON = 3
"""Words asked for."""
RARE = 5
"""Words that occur only once, per entity of the story."""
REPEATS = 4
FREQUENCIES = (8, 5, 3)
CODED_PAUSE = "..."


def cwe(rng: random.Random, held_out: bool, entities: int) -> Story:
    """A numbered list in which three words occur four times and all others once.

    The answer names them in the order of their first appearance. There are no names to hold out.
    """
    drawn = rng.sample(words.GOODS + words.PRODUCTS + words.BIRDS, COMMON + RARE * entities)
    items = drawn[:COMMON] * REPEATS + drawn[COMMON:]
    rng.shuffle(items)
    common = sorted(drawn[:COMMON], key=items.index)
    lines = [f"{number}. {item}" for number, item in enumerate(items, 1)]
    return Story(records(rng, lines, 1), (Asked(COMMON_QUESTION, ", ".join(common)),))


def fwe(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Coded words, three of them more frequent than all others, named by falling frequency."""
    drawn = draw_names(rng, held_out, COMMON + 2 * entities)
    items = [word for word, times in zip(drawn, FREQUENCIES, strict=False) for _ in range(times)]
    items += drawn[COMMON:]
    items += [CODED_PAUSE] * (FREQUENCIES[0] + entities)
    rng.shuffle(items)
    answer = ", ".join(drawn[:COMMON])
    return Story(records(rng, items, 1), (Asked(FREQUENT_QUESTION, answer),))
