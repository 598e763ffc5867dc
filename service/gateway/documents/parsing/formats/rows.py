"""Rows of a table as lines that can be understood by themselves: every cell names its column.

Product | Price        →    Product: Kettle | Price: 20
Kettle  | 20                Product: Toaster | Price: 35
Toaster | 35
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from service.gateway.documents.parsing.formats.text_builder import TextBuilder, one_line

SEPARATOR = " | "
_YEAR = re.compile(r"(19|20)\d\d")


def add_rows(out: TextBuilder, rows: Iterable[Sequence[str]]) -> int:
    """Add a table, one line per row that is not blank; returns how many rows had text.

    The first of them is the header if all its cells are words. A header alone is a line, too.
    """
    header: list[str] | None = None
    count = 0
    for row in rows:
        cells = [one_line(cell) for cell in row]
        if not any(cells):
            continue
        count += 1
        if count == 1 and _is_header(cells):
            header = cells
            continue
        out.line(SEPARATOR.join(_named(header, cells)))
    if header is not None and count == 1:
        out.line(SEPARATOR.join(cell for cell in header if cell))
    out.gap()
    return count


def _named(header: Sequence[str] | None, cells: Sequence[str]) -> list[str]:
    if header is None:
        return [cell for cell in cells if cell]
    names = [*header, *[""] * (len(cells) - len(header))]
    return [f"{n}: {cell}" if n else cell for n, cell in zip(names, cells, strict=False) if cell]


def _is_header(cells: Sequence[str]) -> bool:
    """Whether a first row names columns: several words and no number, none of them twice."""
    names = [cell for cell in cells if cell]
    return len(names) > 1 and len(set(names)) == len(names) and not any(map(_is_number, names))


def _is_number(cell: str) -> bool:
    """Whether a cell is an amount; a year may well name a column."""
    if _YEAR.fullmatch(cell):
        return False
    digits = sum(char.isdigit() for char in cell)
    return digits > 0 and digits * 2 >= len(cell)
