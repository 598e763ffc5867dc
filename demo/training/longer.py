"""Joins several stories to one context, for training at lengths that no single story has.

The stories of a context share no open name. So every question still has one answer, and a text that
a story refers to occurs once in the whole context. Of tasks that ask about the whole context there
is at most one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from demo.language.grammar import open_names
from demo.training.rows import Part

WHOLE = ({"chain", "vt"}, {"cwe"}, {"fwe"})
"""A context may have one story of the tasks of each set, because their questions name no name:
they ask for all variables of a value, or for a count."""
ATTEMPTS = 8
"""After so many draws in a row that do not fit, a context is left shorter."""


def long_parts(draw: Callable[[], Part], tokens: Callable[[str], int], target: int) -> list[Part]:
    """Draws parts until their contexts have about `target` tokens, and not more.

    The first part is always taken, whatever its length.

    Args:
        draw: Draws a part.
        tokens: Counts the tokens of a text.
        target: Tokens of all contexts together.
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
