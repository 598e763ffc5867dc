"""reStructuredText and AsciiDoc: the text is kept as it is; only tables of reStructuredText are
rewritten, so that every row names its columns.

Headings are found by docutils, which includes no other file and runs nothing, and for AsciiDoc,
which no library of Python's reads, by its lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from kvstitch.service.gateway.documents.parsing.charsets import decode
from kvstitch.service.gateway.documents.parsing.markup.text_files import (
    without_metadata,
    without_picture_data,
)
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Bounds,
    Mark,
    ParsedFile,
    TextBuilder,
    heading,
    one_line,
)
from kvstitch.service.gateway.documents.parsing.tables.grid import Cell
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*\s*")
_LINE_WITH_END = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_SETTINGS = {
    "_disable_config": True,
    "doctitle_xform": False,
    "file_insertion_enabled": False,
    "halt_level": 5,
    "line_length_limit": 1_000_000,
    "raw_enabled": False,
    "report_level": 5,
    "syntax_highlight": "none",
}


def parse_rst(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text; its title is its first heading."""
    from docutils import nodes
    from docutils.core import publish_doctree

    decoded = without_picture_data(decode(content))
    plain, said = without_metadata(decoded.text)

    def read(text: str) -> nodes.document:
        return publish_doctree(text, settings_overrides=_SETTINGS)

    text = _with_named_rows(plain, read, bounds)
    tree = read(text)
    titles = [
        title.rawsource.strip() or title.astext()
        for title in tree.findall(nodes.title)
        if isinstance(title.parent, nodes.section)
    ]
    marks = _find(text, titles)
    title = said.get("title") or (marks[0][2] if marks else "")
    return ParsedFile(text, title, marks, decoded.warnings, said)


def _find(text: str, titles: list[str]) -> list[Mark]:
    """Return the places of titles, which come in this order, each above a line of punctuation."""
    lines = [match for match in _LINE_WITH_END.finditer(text) if match[0]]
    marks: list[Mark] = []
    for line, below in pairwise(lines):
        if len(marks) == len(titles):
            break
        title = titles[len(marks)]
        if line[0].strip() == title and _ADORNMENT.fullmatch(below[0]):
            marks.append(heading(line.start(), title))
    return marks


_GRID = re.compile(r"\+[-=+]+\+\s*")
_OF_GRID = ("+", "|")
_SIMPLE = re.compile(r"=+(?: +=+)+\s*")
_DIRECTIVE = re.compile(r"\.\. (?:list-|csv-)?table::")


def _with_named_rows(text: str, read: Callable[[str], Any], bounds: Bounds) -> str:
    """Return a text whose tables are lines that name their columns."""
    lines = text.splitlines(keepends=True)
    out: list[str] = []
    done = 0
    for start, end in _tables(lines):
        if written := _written(read("".join(lines[start:end])), bounds):
            out += [*lines[done:start], written, "\n"]
            done = end
    return "".join([*out, *lines[done:]]) if done else text


def _tables(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first line of what may be a table, and the one behind its last."""
    at = 0
    while at < len(lines):
        end = at
        if _GRID.fullmatch(lines[at]):
            end = _while(lines, at, lambda line: line.startswith(_OF_GRID))
        elif _SIMPLE.fullmatch(lines[at]):
            end = _end_of_simple(lines, at)
        elif _DIRECTIVE.match(lines[at]):
            end = _while(lines, at + 1, lambda line: not line.strip() or line[0].isspace())
            while not lines[end - 1].strip():
                end -= 1
        if end > at + 1:
            yield at, end
        at = max(end, at + 1)


def _while(lines: Sequence[str], at: int, holds: Callable[[str], bool]) -> int:
    while at < len(lines) and holds(lines[at]):
        at += 1
    return at


def _end_of_simple(lines: Sequence[str], start: int) -> int:
    """A simple table ends with a border before a blank line; the one below its header has none."""
    below = ((n, line) for n, line in enumerate([*lines[start + 1 :], "\n"], start + 1))
    for (number, line), (_, after) in pairwise(below):
        if _SIMPLE.fullmatch(line) and not after.strip():
            return number + 1
    return start


def _written(tree: Any, bounds: Bounds) -> str:
    """Return the lines of a tree's table; "" if it is none, or has errors."""
    from docutils import nodes

    table = next(iter(tree.findall(nodes.table)), None)
    if table is None or len(list(tree.findall(nodes.table))) > 1:
        return ""
    out = TextBuilder(bounds)
    for title in table.findall(nodes.title):
        out.line(one_line(title.astext()))
    head = [row for part in table.findall(nodes.thead) for row in part.children]
    body = [row for part in table.findall(nodes.tbody) for row in part.children]
    rows = [
        [
            Cell(
                one_line("; ".join(child.astext() for child in _blocks(entry))),
                1 + entry.get("morerows", 0),
                1 + entry.get("morecols", 0),
            )
            for entry in row.children
        ]
        for row in [*head, *body]
    ]
    add_rows(out, rows, headers=len(head) or None)
    return out.finish().text


def _blocks(entry: Any) -> Iterator[Any]:
    """Yield what stands in a cell: its paragraphs as one, and the items of its lists."""
    from docutils import nodes

    for child in entry.children:
        lists = (nodes.bullet_list, nodes.enumerated_list)
        yield from child.children if isinstance(child, lists) else [child]


# Lines that open a block, and close it where they come again: no line within is a heading.
_FENCE = re.compile(r"-{4,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|/{4,}|```.*|[|,:!]={3,}")
_ADOC_HEADING = re.compile(r"={1,6} +(\S.*)")
_ADOC_UNDERLINE = re.compile(r"([=~^+-])\1+")
_NO_TITLE = re.compile(r"[\[.|:*/]|//|include::")


def parse_asciidoc(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text; its title is its first heading of level 0. Comments and includes stay as
    they are."""
    decoded = decode(content)
    text, said = without_metadata(decoded.text)
    lines = [match for match in _LINE_WITH_END.finditer(text) if match[0]]
    marks: list[Mark] = []
    title, fence, before = said.get("title", ""), "", ""
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
    return ParsedFile(text, title, marks, decoded.warnings, said)


def _is_adoc_title(line: str, below: str) -> bool:
    """Return whether a line is the old form of a heading: underlined, in about its length."""
    return (
        _ADOC_UNDERLINE.fullmatch(below) is not None
        and abs(len(line) - len(below)) <= 2
        and any(map(str.isalnum, line))
        and not _NO_TITLE.match(line)
    )
