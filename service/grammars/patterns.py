"""Regular expressions of schemas, as far as llguidance can hold them: no look-around.

A condition at the beginning, as people write them for passwords and pydantic for decimals, is the
same as a second expression that must match, too:

    ^(?=.*[A-Z]).{8,}$      ^.*[A-Z]    and  ^.{8,}$
    ^(?![-+.]*$)[-+]?…      [^-+.]      and  ^[-+]?…
"""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher

_CONDITION = re.compile(r"\(\?([=!])")
_LOOK_AROUND = re.compile(r"(?<!\\)\(\?<?[=!]")
_ALL_OF_A_CLASS = re.compile(r"\^?\[((?:[^\]\\^]|\\.)(?:[^\]\\]|\\.)*)\][*+]\$")


def holdable(pattern: str) -> tuple[list[str], bool]:
    """Return expressions that must all match instead, and whether they say the same."""
    conditions, rest, exact = _without_conditions(pattern)
    if not _held(rest) and (rest := _without_look_around(rest)):
        exact = False
    held = [each for each in [*conditions, rest] if _held(each)]
    return held, exact and len(held) == len(conditions) + 1


def _held(pattern: str) -> bool:
    schema = json.dumps({"type": "string", "pattern": pattern})
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))


def _without_conditions(pattern: str) -> tuple[list[str], str, bool]:
    anchored = pattern.startswith("^")
    conditions: list[str] = []
    rest, exact = pattern[1:] if anchored else pattern, True
    while anchored and (found := _CONDITION.match(rest)):
        end = _closing(rest)
        inner, rest = rest[found.end() : end], rest[end + 1 :]
        if found[1] == "=":
            conditions.append(f"^(?:{inner})")
        elif chars := _ALL_OF_A_CLASS.fullmatch(inner):
            conditions.append(f"[^{chars[1]}]")
        else:
            exact = False
    return conditions, ("^" if anchored else "") + rest, exact


def _without_look_around(text: str) -> str:
    """Return the expression without what looks around, wherever it stands: more matches it."""
    while found := _LOOK_AROUND.search(text):
        text = text[: found.start()] + text[found.start() + _closing(text[found.start() :]) + 1 :]
    return text


def _closing(text: str) -> int:
    """Return where the group that begins `text` ends."""
    depth, in_class, at = 0, False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at
        at += 1
    raise ValueError(f"the pattern {text[:80]!r} has a group without an end")
