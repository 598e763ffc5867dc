"""Long tables of a PDF: rows whose cells stand below one another in columns, also over pages. Each
row names its columns, as those of other formats do.

A short table keeps its look: its header stands in the same chunk.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Self

from kvstitch.service.gateway.documents.parsing.pdf.layout import Line
from kvstitch.service.gateway.documents.parsing.tables.grid import NOTHING, Cell, Row
from kvstitch.service.gateway.documents.parsing.tables.headers import column_names, find_header
from kvstitch.service.gateway.documents.parsing.tables.rows import LOOK_AHEAD, named_row

MIN_COLUMNS = 3
MIN_ROWS = 9
MAX_BETWEEN = 3  # lines between two parts of a table, as a caption on its next page


class _Table:
    """Lines below one another, and the columns [left, right] that their cells make."""

    def __init__(self, line: Line, page: int, start: int) -> None:
        segments = line.row.segments
        self.columns = [[segment.x0, segment.x1] for segment in segments]
        self.cells = [{number: segment.text for number, segment in enumerate(segments)}]
        self.lines = [line]  # of each row the first
        self.rests: list[Line] = []
        self.pages = {page}
        self.start, self.end = start, start + 1  # in lines of the document

    def take(self, line: Line) -> bool:
        """Take a line whose cells stand in the columns: a row, or the rest of one."""
        found: dict[int, str] = {}
        columns = list(self.columns)
        for segment in line.row.segments:
            x0, x1 = segment.x0, segment.x1
            own = [n for n, column in enumerate(self.columns) if x0 < column[1] and column[0] < x1]
            if len(own) != 1 or own[0] in found:
                return False
            found[own[0]] = segment.text
            columns[own[0]] = [min(columns[own[0]][0], x0), max(columns[own[0]][1], x1)]
        row = 0 in found
        if any(a[1] > b[0] for a, b in pairwise(columns)) or (row and len(found) < 2):
            return False
        if not row and (line.gap or len(found) == len(columns) - 1):
            return False
        self.columns = columns
        if row:
            self.cells.append(found)
            self.lines.append(line)
        else:
            self.rests.append(line)
            for column, text in found.items():
                self.cells[-1][column] = f"{self.cells[-1].get(column, '')} {text}".strip()
        return True

    def continues(self, other: Self) -> bool:
        """Return whether this one has the columns of another, shortly behind it."""
        pairs = zip(self.columns, other.columns, strict=False)
        near = self.start - other.end <= MAX_BETWEEN
        same = all(a[0] < b[1] and b[0] < a[1] for a, b in pairs)
        return near and same and len(self.columns) <= len(other.columns)


def with_named_rows(pages: Sequence[list[Line]]) -> list[list[Line]]:
    """Return the pages' lines; rows of long tables name their columns."""
    gone: set[int] = set()
    names: list[str] = []
    header: list[list[str]] = []
    before: _Table | None = None
    for table in _tables(pages):
        width = range(len(table.columns))
        rows: list[Row] = [[Cell(of[n]) if n in of else NOTHING for n in width]
                           for of in table.cells]  # fmt: skip
        texts = [[cell.text for cell in row] for row in rows]
        found = find_header(rows[:LOOK_AHEAD], trusted=False, pairs=False)
        goes_on = before is not None and table.continues(before)
        first = 0
        if found and not (goes_on and texts[found[0]] in header):
            if len(rows) < MIN_ROWS and len(table.pages) == 1:
                continue
            first = sum(found)
            names = column_names(rows[found[0] : first], len(width))
            header = texts[found[0] : first]
            gone.update(map(id, table.lines[found[0] : first]))
        elif not goes_on:
            continue
        gone.update(map(id, table.rests))
        for row, text, line in list(zip(rows, texts, table.lines, strict=True))[first:]:
            if text in header:
                gone.add(id(line))
            line.text, line.full = named_row(row, names), False
        before = table
    return [[line for line in lines if id(line) not in gone] for lines in pages]


def _tables(pages: Sequence[list[Line]]) -> Iterator[_Table]:
    table: _Table | None = None
    for number, (page, line) in enumerate(
        (n, line) for n, lines in enumerate(pages) for line in lines
    ):
        if table and table.take(line):
            table.end = number + 1
            table.pages.add(page)
            continue
        if table and table.end - table.start > 1:
            yield table
        is_row = len(line.row.segments) >= MIN_COLUMNS
        table = _Table(line, page, number) if is_row else None
    if table and table.end - table.start > 1:
        yield table
