"""The one model of a table: rows of cells that may span, as lines that are understood alone.

Every cell names its column, so no chunk of a long table is without its header:

Product | Price        →    Product: Kettle | Price: 20
Kettle  | 20                Product: Toaster | Price: 35
Toaster | 35

A value under a wrong name is worse than one without. So where it is not sure which row holds the
names, or which column a cell belongs to, rows are written without names (`Kettle | 20`).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import cast

from kvstitch.service.gateway.documents.parsing.parsed_file import TextBuilder
from kvstitch.service.gateway.documents.parsing.tables.grid import Cell, Row, distinct, grid
from kvstitch.service.gateway.documents.parsing.tables.headers import (
    column_names,
    find_header,
    names_columns,
)

SEPARATOR = " | "
LOOK_AHEAD = 60  # rows among which the header is looked for


def add_rows(
    out: TextBuilder,
    rows: Iterable[Sequence[Cell | str]],
    *,
    headers: int | None = None,
    delimited: bool = False,
    laid_out: bool = False,
) -> int:
    """Add a table, one line per row that is not blank; returns how many rows had text.

    A cell that spans is given once, where it begins. So many first rows (`headers`) name the
    columns; None: they are looked for. If cells come from counting separators (`delimited`), the
    first full row is the header where nothing speaks against it, and a row with more cells than it
    is written without names. `laid_out`: the rows are a grid already.
    """
    table = _Table(out, delimited=delimited)
    laid = cast(Iterator[Row], iter(rows)) if laid_out else grid(rows)
    above: Row = []  # the last row before a block
    for number, block in enumerate(_blocks(laid)):
        head = list(islice(block, LOOK_AHEAD))
        if headers is None and (gutter := _gutter(head, above, trusted=delimited)):
            # Two tables stand side by side: the right one is written below the left one.
            both = [*head, *block]
            if not any(row[gutter].text for row in both if len(row) > gutter):
                for side in (slice(gutter), slice(gutter + 1, None)):
                    own = [row[side] for row in both]
                    table.count += add_rows(out, own, delimited=delimited, laid_out=True)
                table.names = []
                continue
            head, block = both, iter(())
        if headers is not None:
            table.block(head, (0, headers) if headers and not number else None)
        elif table.goes_on_in(head):
            table.block(head, None)
        else:
            table.names = []
            table.block(head, find_header(head, trusted=delimited, pairs=laid_out))
        above = head[-1]
        for row in block:
            table.row(row)
    out.gap()
    return table.count


def _gutter(rows: Sequence[Row], above: Row, *, trusted: bool) -> int:
    """Return a blank column between two tables; 0: none, or it only sets columns of one apart.

    What tells two: each has a header, and they have titles, other rows, or the same names.
    """
    for column in range(2, max(map(len, rows)) - 2):
        if any(len(row) > column and row[column].text for row in rows):
            continue
        sides = [[row[side] for row in rows] for side in (slice(column), slice(column + 1, None))]
        filled = [[row for row in side if distinct(row)] for side in sides]
        heads = [find_header(side, trusted=trusted, pairs=True) for side in filled]
        if not all(heads):
            continue
        names = [{cell.text for cell in side[sum(head) - 1] if cell.text}
                 for side, head in zip(filled, heads, strict=True) if head]  # fmt: skip
        titles = all(head and head[0] for head in heads)
        if len(distinct(above)) == 2 and len(above) > column + 1:
            titles |= bool(above[0].text and above[column + 1].text)
        if titles or len(filled[0]) != len(filled[1]) or names[0] & names[1]:
            return column
    return 0


def _blocks(rows: Iterator[Row]) -> Iterator[Iterator[Row]]:
    """Yield runs of rows between blank ones; each must be read before the next is asked for."""

    def run(first: Row) -> Iterator[Row]:
        yield first
        for row in rows:
            if not distinct(row):
                return
            yield row

    for first in rows:
        if distinct(first):
            yield run(first)


class _Table:
    """Writes rows under the names that hold at the moment."""

    def __init__(self, out: TextBuilder, *, delimited: bool) -> None:
        self.names: list[str] = []
        self.count = 0
        self._out = out
        self._delimited = delimited
        self._header: list[list[str]] = []

    def block(self, rows: Sequence[Row], header: tuple[int, int] | None) -> None:
        """Write a run of rows; those at `header` (first, number) name the columns from there on."""
        first, number = header or (0, 0)
        end = first + number
        for row in rows[:first]:
            self.row(row)
        if number:
            named = rows[first:end]
            self.names = column_names(named, max(map(len, named)))
            self._header = [_texts(row) for row in named]
            self.count += len(named)
            if end == len(rows):  # a header alone is a line, too
                self._out.line(SEPARATOR.join(name for name in self.names if name))
        for row in rows[end:]:
            self.row(row)

    def goes_on_in(self, rows: Sequence[Row]) -> bool:
        """Return whether rows after a blank one belong to the same table: they have no columns
        beyond its own, and no header that is surely one."""
        width = max(len(_texts(row)) for row in rows)
        if not any(self.names) or width > len(self.names):
            return False
        first = rows[0]
        return _texts(first) in self._header or not (
            len(distinct(first)) > 1 and (len(rows) > 1 and names_columns(first, rows[1:]))
        )

    def row(self, row: Row) -> None:
        self.count += 1
        if _texts(row) in self._header:
            return  # the header again, as at the top of a printed page
        names = self.names
        if self._delimited and len(_texts(row)) > len(names):
            names = []
        self._out.line(named_row(row, names))


def named_row(row: Row, names: Sequence[str]) -> str:
    """Return a row as a line, in which every cell names its column."""
    cells = distinct(row)
    # A cell by itself in a row of many columns is a heading or a note, and belongs to none.
    alone = len(cells) == 1 and (len(names) > 2 or cells[0].columns > 1)
    if alone or not names:  # side by side; one that ends in a colon names the next
        return SEPARATOR.join(cell.text for cell in cells).replace(":" + SEPARATOR, ": ")
    parts = []
    for cell in cells:
        own = [n for n, other in zip(names, row, strict=False) if other is cell and n]
        name = ", ".join(dict.fromkeys(own))
        parts.append(f"{name}: {cell.text}" if name else cell.text)
    return SEPARATOR.join(parts)


def _texts(row: Row) -> list[str]:
    """Return the texts of a row up to its last cell that is not blank."""
    texts = [cell.text for cell in row]
    while texts and not texts[-1]:
        texts.pop()
    return texts
