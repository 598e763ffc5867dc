"""What parsing a file gives. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_HEADINGS = 1000


@dataclass(frozen=True)
class Heading:
    """`start` is its first character in the text, `level` 1 to 6."""

    start: int
    level: int
    title: str


@dataclass(frozen=True)
class ParsedFile:
    """Text, and where its pages and headings begin; `title` may be empty."""

    text: str
    title: str = ""
    pages: list[int] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)

    @property
    def outline(self) -> dict[str, Any]:
        """For the document's metadata: character positions that citations can be looked up in."""
        out: dict[str, Any] = {}
        if self.pages:
            out["pages"] = self.pages
        if self.headings:
            first = self.headings[:MAX_HEADINGS]
            out["headings"] = [[h.start, h.level, h.title] for h in first]
        return out
