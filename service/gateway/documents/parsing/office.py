"""DOCX, PPTX, XLSX and EPUB: all are zip archives of XML, and read as what they are, whatever the
file's name says.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from importlib import import_module
from io import BytesIO
from typing import Any
from zipfile import ZipFile

from service.errors import InvalidRequest
from service.gateway.documents.parsing.archives import check_no_entities, open_zip
from service.gateway.documents.parsing.office_package import usual_package
from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder
from service.gateway.documents.parsing.tables import add_rows

MAX_ROWS = 1_048_576  # Excel's own limit; a file may name rows far beyond it
# A file that only such a format has.
_KINDS = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "xlsx",
    "META-INF/container.xml": "epub",
}


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file of any of these formats.

    Raises:
        InvalidRequest: It is none of them, is encrypted, or exceeds a limit.
        Exception: Whatever the format's library raises for a broken file.
    """
    with open_zip(content) as archive:
        kind = kind_of(archive)
        if kind is None:
            raise InvalidRequest("it is an archive, but no .docx, .pptx, .xlsx or .epub: unpack it")
        if kind != "epub":
            check_no_entities(archive)
            content = usual_package(content, archive)
    if kind == "xlsx":
        return _parse_xlsx(content, bounds)
    # Each of these libraries takes a part of a second to load.
    module = import_module(f"service.gateway.documents.parsing.{kind}")
    parsed: ParsedFile = module.parse(content, bounds)
    return parsed


def kind_of(archive: ZipFile) -> str | None:
    """Return the format by what is in the archive, not by its name; None if it is unknown."""
    names = {name.replace("\\", "/").lower() for name in archive.namelist()}
    return next((kind for name, kind in _KINDS.items() if name.lower() in names), None)


def _parse_xlsx(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse an XLSX: every visible sheet as a table whose rows name their columns.

    Kept: the values that were saved, also those of formulas. Not kept: hidden sheets, charts,
    comments, formats of numbers.

    Raises:
        InvalidRequest: It exceeds a limit.
        Exception: Whatever openpyxl raises for a broken file.
    """
    from openpyxl import load_workbook
    from openpyxl.worksheet._read_only import ReadOnlyWorksheet

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


def _rows(sheet: Any) -> Iterator[list[str]]:
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
