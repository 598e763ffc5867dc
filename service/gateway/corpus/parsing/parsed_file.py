"""The result of parsing a file, the same for every format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_HEADINGS = 1000


@dataclass(frozen=True)
class Heading:
    """A heading; `start` is its first character in the text, `level` is 1 to 6."""

    start: int
    level: int
    title: str


@dataclass(frozen=True)
class ParsedFile:
    """A file's text.

    Attributes:
        text: All of it.
        title: As the file says; may be empty.
        pages: The character at which each page begins; empty if there are no pages.
        headings: In their order.
    """

    text: str
    title: str = ""
    pages: list[int] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)

    @property
    def outline(self) -> dict[str, Any]:
        """For the document's metadata: the characters at which pages and headings begin, so that
        a citation can be traced to them."""
        out: dict[str, Any] = {}
        if self.pages:
            out["pages"] = self.pages
        if self.headings:
            first = self.headings[:MAX_HEADINGS]
            out["headings"] = [[h.start, h.level, h.title] for h in first]
        return out
