"""Long tables of a PDF: rows whose cells stand below one another in columns, also over pages. Each
row names its columns, as those of other formats do.

A short table keeps its look: its header stands in the same chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvstitch.service.gateway.documents.parsing.pdf.layout import Line
from kvstitch.service.gateway.documents.parsing.tables.grid import NOTHING, Cell, Row
from kvstitch.service.gateway.documents.parsing.tables.headers import column_names, find_header
from kvstitch.service.gateway.documents.parsing.tables.rows import LOOK_AHEAD, named_row

MIN_COLUMNS = 3
MIN_ROWS = 9
MAX_BETWEEN = 3  # lines between two parts of a table, as a caption on its next page


@dataclass
class _Table:
    """Lines below one another, and the columns [left, right] that their cells make."""

    lines: list[tuple[int, Line]] = field(default_factory=list)  # with their pages
    columns: list[list[float]] = field(default_factory=list)
    cells: list[dict[int, str]] = field(default_factory=list)  # of each line, by column
    end: int = 0  # lines of the document before the one behind it

    def take(self, page: int, line: Line) -> bool:
        """Take a line if its cells stand in the columns."""
        segments = line.row.segments
        if not self.lines:
            self.columns = [[segment.x0, segment.x1] for segment in segments]
            if any(a[1] > b[0] for a, b in zip(self.columns, self.columns[1:], strict=False)):
                return False
        found: dict[int, str] = {}
        widened = [list(column) for column in self.columns]
        for segment in segments:
            own = [
                n for n, (x0, x1) in enumerate(self.columns) if segment.x0 < x1 and x0 < segment.x1
            ]
            if len(own) != 1 or own[0] in found:
                return False
            found[own[0]] = segment.text
            left, right = widened[own[0]]
            widened[own[0]] = [min(left, segment.x0), max(right, segment.x1)]
        if any(a[1] > b[0] for a, b in itertools.pairwise(widened)):
            return False
        if 0 not in found and (line.gap or not self.lines or len(found) == len(self.columns) - 1):
            return False  # neither a row nor the rest of one
        if 0 in found and len(found) < 2:
            return False
        self.columns = widened
        self.lines.append((page, line))
        self.cells.append(found)
        return True

    def rows(self) -> tuple[list[Row], list[Line], list[Line]]:
        """Return the rows, the line of each, and lines that only go on with cells of one."""
        rows: list[dict[int, str]] = []
        lines: list[Line] = []
        rests: list[Line] = []
        for (_, line), cells in zip(self.lines, self.cells, strict=True):
            if 0 in cells or not rows:
                rows.append(dict(cells))
                lines.append(line)
                continue
            rests.append(line)
            for column, text in cells.items():
                rows[-1][column] = f"{rows[-1].get(column, '')} {text}".strip()
        width = range(len(self.columns))
        return ([[Cell(row[n]) if n in row else NOTHING for n in width] for row in rows],
                lines, rests)  # fmt: skip

    def continues(self, other: _Table) -> bool:
        """Return whether this one has the columns of another."""
        pairs = zip(self.columns, other.columns, strict=False)
        return len(self.columns) <= len(other.columns) and all(
            a[0] < b[1] and b[0] < a[1] for a, b in pairs
        )


def with_named_rows(pages: Sequence[list[Line]]) -> list[list[Line]]:
    """Return the pages' lines; rows of long tables name their columns."""
    gone: set[int] = set()
    names: list[str] = []
    header: list[list[str]] = []
    before: _Table | None = None
    for table, start in _tables(pages):
        rows, lines, rests = table.rows()
        found = find_header(rows[:LOOK_AHEAD], trusted=False, pairs=False)
        goes_on = before is not None and names and table.continues(before)
        goes_on = goes_on and start - before.end <= MAX_BETWEEN if before else False
        first = 0
        if found and not (goes_on and [cell.text for cell in rows[found[0]]] in header):
            if len(rows) < MIN_ROWS and table.lines[0][0] == table.lines[-1][0]:
                continue
            first = sum(found)
            named = rows[found[0] : first]
            names, header = column_names(named, len(rows[0])), [[c.text for c in r] for r in named]
        elif not goes_on:
            continue
        gone.update(map(id, rests))
        for row, line in zip(rows[first:], lines[first:], strict=True):
            if [cell.text for cell in row] in header:
                gone.add(id(line))
            line.text, line.full = named_row(row, names), False
        if found and first:
            gone.update(map(id, lines[found[0] : first]))
        before = table
    return [[line for line in lines if id(line) not in gone] for lines in pages]


def _tables(pages: Sequence[list[Line]]) -> Iterator[tuple[_Table, int]]:
    """Yield tables, and how many lines of the document stand before each."""
    table, start, number = _Table(), 0, 0
    for page, lines in enumerate(pages):
        for line in lines:
            if not (table.lines and table.take(page, line)):
                if len(table.lines) > 1:
                    yield table, start
                table, start = _Table(), number
                if len(line.row.segments) >= MIN_COLUMNS:
                    table.take(page, line)
            number += 1
            table.end = number
    if len(table.lines) > 1:
        yield table, start
