"""XLSX: every visible sheet as a table whose rows name their columns.

Kept: the values that were saved, also those of formulas. Not kept: hidden sheets, charts, comments,
formats of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from io import BytesIO

from openpyxl import load_workbook
from openpyxl.worksheet._read_only import ReadOnlyWorksheet

from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder
from service.gateway.documents.parsing.tables import add_rows

MAX_ROWS = 1_048_576  # Excel's own limit; a file may name rows far beyond it


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file that is known to be an XLSX.

    Raises:
        InvalidRequest: It exceeds a limit.
        Exception: Whatever openpyxl raises for a broken file.
    """
    book = load_workbook(BytesIO(content), read_only=True, data_only=True, keep_links=False)
    bounds.check_pages(len(book.sheetnames), "sheets")
    out = TextBuilder(bounds)
    for sheet in book.worksheets:
        if sheet.sheet_state == "visible" and isinstance(sheet, ReadOnlyWorksheet):
            out.gap()
            out.mark("sheet", sheet.title)
            out.block(f"## {sheet.title}")
            if not add_rows(out, _rows(sheet)):
                out.block("(no rows)")
    return out.finish(book.properties.title or "")


def _rows(sheet: ReadOnlyWorksheet) -> Iterator[list[str]]:
    sheet.reset_dimensions()  # what the file says may be wrong, or billions of empty cells
    for row in sheet.iter_rows(max_row=MAX_ROWS, values_only=True):
        yield [_cell(value) for value in row]


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            return f"{value:.15g}"
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case datetime():
            return value.isoformat(" ", "seconds")
        case date() | time():
            return value.isoformat()
    return str(value)
