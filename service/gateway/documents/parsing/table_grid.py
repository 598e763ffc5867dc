"""Cells of a table, and the grid that they lie on once those that span are laid out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from service.gateway.documents.parsing.parsed_file import one_line

MAX_COLUMNS = 16_384  # Excel's; spans beyond it are cut


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell, and over how many rows and columns it is merged.

    Attributes:
        text: What stands in it, on one line.
        rows: 1, or more if it covers the rows below.
        columns: 1, or more if it covers the columns to its right.
    """

    text: str
    rows: int = 1
    columns: int = 1


Row = list[Cell]
NOTHING = Cell("")


def grid(rows: Iterable[Sequence[Cell | str]]) -> Iterator[Row]:
    """Yield rows by column; a cell that spans stands, as the same object, in each of its places."""
    above: dict[int, tuple[int, Cell]] = {}  # column → a cell, and how many rows it still covers
    for given in rows:
        row: Row = []
        covered, above = above, {}
        waiting = iter(given)

        def place(cell: Cell, rows: int, row: Row = row) -> None:
            if rows > 0:
                above[len(row)] = (rows, cell)
            row.append(cell)

        while True:
            if len(row) in covered:
                rows_left, cell = covered.pop(len(row))
                place(cell, rows_left - 1)
            elif (item := next(waiting, None)) is not None:
                cell = item if isinstance(item, Cell) else Cell(item)
                cell = Cell(one_line(cell.text), cell.rows, cell.columns)
                for number in range(min(max(cell.columns, 1), MAX_COLUMNS - len(row))):
                    if number and len(row) in covered:
                        break  # two cells claim the place: the one above has it
                    place(cell, cell.rows - 1)
            elif covered:
                row.append(NOTHING)
            else:
                break
        yield row


def distinct(row: Row) -> Row:
    """Return the cells with text, each once."""
    return list({id(cell): cell for cell in row if cell.text}.values())
