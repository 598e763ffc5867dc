"""Several stories one after another as one context, for training at lengths no story has.

They share no open name, so every question still has one answer, and texts a story refers to stand
once in the whole. Tasks that ask about the context as a whole come once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from demo.language.grammar import open_names
from demo.training.rows import Part

WHOLE = ({"chain", "vt"}, {"cwe"}, {"fwe"})
"""Of the tasks of each set one story may stand in a context: a value or a count is asked for,
not a name."""
ATTEMPTS = 8
"""Draws in a row that do not fit before a context is left shorter."""


def long_parts(draw: Callable[[], Part], tokens: Callable[[str], int], target: int) -> list[Part]:
    """Parts from `draw` until their contexts have about `target` tokens, and never more.

    The first fits whatever its length.
    """
    parts = [draw()]
    left = target - tokens(parts[0].story.context)
    misses = 0
    while left > 0 and misses < ATTEMPTS:
        part = draw()
        size = tokens(part.story.context)
        if size > left or any(_clash(part, other) for other in parts):
            misses += 1
            continue
        misses = 0
        parts.append(part)
        left -= size
    return parts


def _clash(one: Part, other: Part) -> bool:
    if any({one.task, other.task} <= tasks for tasks in WHOLE):
        return True
    return bool(_names(one) & _names(other))


def _names(part: Part) -> frozenset[str]:
    return _names_in(part.story.context)


@cache
def _all_names() -> frozenset[str]:
    return frozenset(open_names(False) + open_names(True))


def _names_in(context: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", context)) & _all_names()
