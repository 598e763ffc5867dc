"""RULER's needle in a haystack, in its own wording: several keys, one queried, noise between.

Differs from RULER in its keys, which are invented names, and in its much shorter haystack.
"""

from __future__ import annotations

import random

from demo.tasks.story import Asked, Story, draw_names, records
from demo.wording import NEEDLE, NEEDLE_QUESTION, NOISE

NOISE_LINES = 5


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
