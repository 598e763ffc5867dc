"""Tables of reStructuredText, rewritten by the table model; everything else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from service.gateway.documents.parsing.parsed_file import Bounds, TextBuilder, one_line
from service.gateway.documents.parsing.tables.grid import Cell
from service.gateway.documents.parsing.tables.rows import add_rows

_GRID = re.compile(r"\+[-=+]+\+\s*")
_OF_GRID = ("+", "|")
_SIMPLE = re.compile(r"=+(?: +=+)+\s*")
_DIRECTIVE = re.compile(r"\.\. (?:list-|csv-)?table::")


def with_named_rows(text: str, read: Callable[[str], Any], bounds: Bounds) -> str:
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
