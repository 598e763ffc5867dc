"""AsciiDoc, which no library of Python's reads: kept as it is, with headings found by its lines."""

from __future__ import annotations

import re

from service.gateway.documents.parsing.charsets import decode
from service.gateway.documents.parsing.parsed_file import Bounds, Mark, ParsedFile, heading

_LINE_WITH_END = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
# Lines that open a block, and close it where they come again: no line within is a heading.
_FENCE = re.compile(r"-{4,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|/{4,}|```.*|[|,:!]={3,}")
_ADOC_HEADING = re.compile(r"={1,6} +(\S.*)")
_ADOC_UNDERLINE = re.compile(r"([=~^+-])\1+")
_NO_TITLE = re.compile(r"[\[.|:*/]|//|include::")


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text; its title is its first heading of level 0. Comments and includes stay as
    they are."""
    decoded = decode(content)
    text = decoded.text
    lines = [match for match in _LINE_WITH_END.finditer(text) if match[0]]
    marks: list[Mark] = []
    title = fence = before = ""
    underline = False
    for at, match in enumerate(lines):
        line = match[0].strip()
        below = lines[at + 1][0].strip() if at + 1 < len(lines) else ""
        if fence:
            fence = "" if line == fence else fence
        elif underline:
            underline = False
        elif found := _ADOC_HEADING.fullmatch(line):
            marks.append(heading(match.start(), found[1]))
            title = title or (found[1] if line.startswith("= ") else "")
        elif not before and _is_adoc_title(line, below):
            marks.append(heading(match.start(), line))
            title = title or (line if below.startswith("=") else "")
            underline = True
        elif _FENCE.fullmatch(line):
            fence = "```" if line.startswith("```") else line
        before = line
    return ParsedFile(text, title, marks, decoded.warnings)


def _is_adoc_title(line: str, below: str) -> bool:
    """Return whether a line is the old form of a heading: underlined, in about its length."""
    return (
        _ADOC_UNDERLINE.fullmatch(below) is not None
        and abs(len(line) - len(below)) <= 2
        and any(map(str.isalnum, line))
        and not _NO_TITLE.match(line)
    )
