"""Where in its document a passage begins: under which headings, and on which page.

The place is read from the outline that the parser of a file put into the metadata. Metadata are the
user's, and may have something else under this name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

OUTLINE = "outline"


def without_outline(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without the outline, which is long."""
    return {name: value for name, value in metadata.items() if name != OUTLINE}


def headings_at(metadata: Mapping[str, Any], char: int) -> list[str]:
    """The titles of the headings that hold for a character of the text, the outermost first."""
    open_headings: list[tuple[int, str]] = []
    for start, level, title in filter(_is_heading, _part(metadata, "headings")):
        if start > char:
            break
        while open_headings and open_headings[-1][0] >= level:
            open_headings.pop()
        open_headings.append((level, title))
    return [title for _, title in open_headings]


def page_at(metadata: Mapping[str, Any], char: int) -> int | None:
    """The page of a character of the text, from 1; None if the document has no pages."""
    starts = [start for start in _part(metadata, "pages") if isinstance(start, int)]
    return bisect_right(starts, char) or None


def _part(metadata: Mapping[str, Any], name: str) -> list[Any]:
    outline = metadata.get(OUTLINE)
    part = outline.get(name) if isinstance(outline, dict) else None
    return part if isinstance(part, list) else []


def _is_heading(found: Any) -> bool:
    match found:
        case [int(), int(), str()]:
            return True
    return False
