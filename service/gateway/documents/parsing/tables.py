"""Rows of tables as lines that can be understood by themselves, and CSV and TSV files.

Every cell names its column:

Product | Price        →    Product: Kettle | Price: 20
Kettle  | 20                Product: Toaster | Price: 35
Toaster | 35
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO

from service.errors import InvalidRequest
from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder, one_line

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
    """Return whether a first row names columns: several words, no number, none of them twice."""
    names = [cell for cell in cells if cell]
    return len(names) > 1 and len(set(names)) == len(names) and not any(map(_is_number, names))


def _is_number(cell: str) -> bool:
    """Return whether a cell is an amount; a year may well name a column."""
    if _YEAR.fullmatch(cell):
        return False
    digits = sum(char.isdigit() for char in cell)
    return digits > 0 and digits * 2 >= len(cell)


DELIMITERS = ",;\t|"
SAMPLE_LINES = 20
MAX_FIELD_CHARS = 1 << 20


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a table; its delimiter is the one that cuts its first lines most evenly.

    Raises:
        InvalidRequest: It is neither UTF-8 nor UTF-16, or exceeds a limit.
    """
    text = _decoded(content)
    csv.field_size_limit(MAX_FIELD_CHARS)
    out = TextBuilder(bounds)
    try:
        add_rows(out, csv.reader(StringIO(text, newline=""), delimiter=_delimiter(text)))
    except csv.Error as error:
        raise InvalidRequest(f"it is not a readable table: {error}") from error
    return out.finish()


def _decoded(content: bytes) -> str:
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"it is not valid UTF-8 (byte {error.start}): save the table as CSV UTF-8"
        ) from error
    if "\0" in text:
        raise InvalidRequest("it holds NUL characters, so it is no text: save it as CSV UTF-8")
    return text


def _delimiter(text: str) -> str:
    """Return the delimiter with the most columns, if all first lines have as many."""
    lines = [line for line in text[:65_536].splitlines()[:SAMPLE_LINES] if line.strip()]

    def columns(delimiter: str) -> tuple[int, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        most = max(widths, default=0)
        return (widths.count(most) if most > 1 else 0), most

    return max(DELIMITERS, key=columns)
