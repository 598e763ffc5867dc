"""Scores that look for references, numbers or class names in a text.

`string_match_*` are RULER's, `classification`, `count` and `retrieval` LongBench's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from service.errors import InvalidRequest

_CONTROL = re.compile(r"[\x00-\x1f]")
_NUMBER = re.compile(r"\d+")
_PARAGRAPH = re.compile(r"Paragraph (\d+)")


def exact(text: str, reference: str) -> float:
    """Whether text and reference are equal up to surrounding white space."""
    return float(text.strip() == reference.strip())


def string_match_all(text: str, references: Sequence[str]) -> float:
    """The share of references that occur in the text, whatever their case."""
    found = _found(text, references)
    return sum(found) / len(found)


def string_match_part(text: str, references: Sequence[str]) -> float:
    """Whether any reference occurs in the text, whatever its case."""
    return float(any(_found(text, references)))


def _found(text: str, references: Sequence[str]) -> list[bool]:
    """Which references occur in the text; RULER first turns control characters into line breaks."""
    searched = _CONTROL.sub("\n", text.strip()).strip().lower()
    return [reference.lower() in searched for reference in references]


def classification(text: str, references: Sequence[str], classes: Sequence[str]) -> float:
    """1 / number of classes that the text names, if the right one is among them, else 0.

    A class whose name is part of the right one's name does not count. The official code removes
    such names from the list it iterates over, so one that follows a removed one stays. The same
    happens here.
    """
    if not classes:
        raise InvalidRequest("a classification needs the names of all classes", field="classes")
    return max(_classified(text, reference, classes) for reference in references)


def _classified(text: str, reference: str, classes: Sequence[str]) -> float:
    named = [name for name in classes if name in text]
    for name in named:
        if name in reference and name != reference:
            named.remove(
                name
            )  # removed while iterating, which skips the next one, as in the official code
    return 1 / len(named) if reference in named else 0.0


def count(text: str, reference: str) -> float:
    """Share of the text's numbers that equal the reference as written."""
    numbers: list[str] = _NUMBER.findall(text)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def retrieval(text: str, reference: str) -> float:
    """`count` against the number of the reference, "Paragraph <number>"."""
    paragraph = _PARAGRAPH.search(reference)
    if paragraph is None:
        raise InvalidRequest(
            f'{reference!r} does not name a paragraph: "Paragraph 7" would', field="references"
        )
    return count(text, paragraph[1])
