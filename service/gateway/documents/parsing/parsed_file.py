"""The result of parsing a file, the same for every format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from service.errors import InvalidRequest

MarkKind = Literal["page", "slide", "sheet", "heading"]
Mark = tuple[int, MarkKind, str]
"""(first character, what begins there, its label); see retriever/marks.py."""

AS_THEY_ARE = ("md", "rst")  # kinds whose text is kept; only title and headings are looked for
MAX_MARKS = 20_000  # of one file; those after them are left out
MAX_LABEL_CHARS = 200
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Bounds:
    """What a file may hold.

    Attributes:
        pages: Pages, slides, sheets or chapters.
        chars: Characters of its text.
    """

    pages: int
    chars: int

    def check_pages(self, count: int, what: str) -> None:
        """Raise InvalidRequest if so many pages, or `what` they are called, are too many."""
        if count > self.pages:
            raise InvalidRequest(f"it has {count} {what}, the limit is {self.pages}: split it")

    def check_chars(self, count: int) -> None:
        """Raise InvalidRequest if so many characters of text are too many."""
        if count > self.chars:
            raise InvalidRequest(f"its text has more than {self.chars} characters: split it")


@dataclass(frozen=True)
class ParsedFile:
    """A file's text.

    Attributes:
        text: All of it.
        title: As the file says; may be empty.
        marks: Where pages, slides, sheets and headings begin, in their order.
    """

    text: str
    title: str = ""
    marks: list[Mark] = field(default_factory=list)


def heading(start: int, text: str) -> Mark:
    """The mark of a heading; its label is one line, and not too long."""
    label = _SPACE.sub(" ", text).strip()
    if len(label) > MAX_LABEL_CHARS:
        label = label[: MAX_LABEL_CHARS - 1] + "…"
    return start, "heading", label
