"""XLSX: every visible sheet as a table whose rows name their columns.

Kept: values as people see them, also those of formulas; a formula without a saved value as it is
written; behind the rows comments and what is in text boxes. Not kept: hidden sheets, rows and
columns with their comments; pictures; of charts, which show what cells hold, all but the titles.

Cells are read by openpyxl's reader of a sheet, which its read-only worksheets use, too: these pass
on neither merged nor hidden cells, and its others take fifty times the file's size of memory.
"""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from io import BytesIO
from typing import Any

from openpyxl import load_workbook
from openpyxl.styles.numbers import BUILTIN_FORMATS
from openpyxl.utils.cell import coordinate_to_tuple, range_boundaries
from openpyxl.worksheet._read_only import ReadOnlyWorksheet
from openpyxl.worksheet._reader import FORMULA_TAG, WorkSheetParser

from kvstitch.service.gateway.documents.parsing.office.sheet_parts import external_targets, parts_of
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Addresses,
    Bounds,
    ParsedFile,
    ParseWarning,
    TextBuilder,
    left_out_warnings,
    meaningful_title,
    one_line,
    places_warning,
    struck,
)
from kvstitch.service.gateway.documents.parsing.tables.grid import NOTHING, Cell, Row
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows

_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[[^\]]*\]|_.|\*.'
    r"|(?P<digits>[0#?](?:[0#?.,]*[0#?])?)|(?P<literal>.)",
    re.S,
)


def formatted(value: int | float, code: str) -> str:
    """Return a number in a format of Excel's, e.g. 0.175 in "0.0%" as 17.5%."""
    if code == "General":
        return _plain(value)
    before, mask, after = _parts(code)
    if not mask:
        return _plain(value)
    if "%" in after:
        value = float(value) * 100
    text = _plain(abs(value))
    if set(mask) == {"0"} and float(value).is_integer():
        text = text.zfill(len(mask))
    sign = "-" if value < 0 else ""
    return f"{before}{sign}{text}{after}".strip()


@lru_cache(maxsize=1024)
def _parts(code: str) -> tuple[str, str, str]:
    """Return what stands before the digits, their mask, and what stands behind them."""
    before, mask, after = "", "", ""
    for token in _TOKEN.finditer(code.split(";")[0]):
        if mask and (token["digits"] or token["literal"] in tuple("Ee/")):
            return "", "", ""  # in groups, as in 000-00-0000, powers or fractions: left as a number
        if token["digits"]:
            mask = token["digits"]
            continue
        text = token["quoted"] or token["escaped"] or token["currency"] or token["literal"] or ""
        if mask:
            after += text
        else:
            before += text
    return before, mask, after


def _plain(value: int | float) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


MAX_ROWS = 1_048_576  # Excel's own limit; a file may name rows far beyond it
_MERGED = re.compile(rb"<(?:\w+:)?mergeCell\s[^>]*?\bref\s*=\s*[\"']([A-Z]+\d+:[A-Z]+\d+)[\"']")
_TRUE = ("1", "true")
FORMULAS = (
    "formulas_without_values",
    "formulas without a saved value stand as they are written (sheets {places}): open the file in "
    "a spreadsheet program and save it",
)
HIDDEN_SHEETS = ("hidden_sheets", "hidden sheets are left out: {places}")
Merged = tuple[int, int, int, int]  # first column, first row, last column, last row


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file that is known to be an XLSX."""
    book = load_workbook(BytesIO(content), read_only=True, data_only=True, keep_links=False)
    bounds.check_pages(len(book.sheetnames), "sheets")
    out = TextBuilder(bounds)
    hidden: list[str] = []
    unsaved: list[str] = []
    hidden_cells: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for sheet in book.worksheets:
        if not isinstance(sheet, ReadOnlyWorksheet):
            continue
        if sheet.sheet_state != "visible":
            hidden.append(sheet.title)
            continue
        out.gap()
        out.mark("sheet", sheet.title)
        out.block(f"## {sheet.title}")
        reader = _Sheet(sheet)
        has_rows = add_rows(out, reader.rows(), laid_out=True)
        hidden_cells.update(reader.hidden)
        parts = parts_of(book._archive, sheet._worksheet_path)
        left_out.update(parts.left_out)
        if not (has_rows or parts.texts or parts.comments):
            out.block("(no rows)")
        for text in parts.texts:
            out.block(text)
        for cell, text in parts.comments:
            if not reader.hides(cell):
                out.block(f"Comment on {cell}: {text}")
        if reader.formulas:
            unsaved.append(sheet.title)
    warnings = [
        places_warning(*said, places)
        for said, places in ((FORMULAS, unsaved), (HIDDEN_SHEETS, hidden))
        if places
    ]
    if hidden_cells:
        said = " and ".join(f"{count} {what}" for what, count in sorted(hidden_cells.items()))
        message = f"hidden cells are left out: {said}"
        warnings.append(ParseWarning("hidden_cells", message, count=hidden_cells.total()))
    warnings += left_out_warnings(left_out)
    return out.finish(meaningful_title(book.properties.title or ""), warnings)


_LINK = re.compile(
    rb"<(?:\w+:)?hyperlink\s(?=[^>]*?\bref=[\"']([A-Z]+\d+))(?=[^>]*?:id=[\"']([^\"']+))"
)
_HYPERLINK = re.compile(r'=HYPERLINK\(\s*"([^"]+)"\s*(?:[,;]\s*"([^"]*)"\s*)?\)', re.I)


def _links(xml: bytes, archive: Any, path: str) -> dict[tuple[int, int], str]:
    """Return where cells (row, column) of a sheet lead."""
    found = _LINK.findall(xml)
    targets = external_targets(archive, path) if found else {}
    return {coordinate_to_tuple(cell.decode()): targets.get(key.decode(), "")
            for cell, key in found}  # fmt: skip


class _Sheet:
    def __init__(self, sheet: Any) -> None:
        self.hidden: Counter[str] = Counter()
        self.formulas = 0
        self._hidden_rows: set[int] = set()
        self._hidden_columns: set[int] = set()
        self._sheet, self._book = sheet, sheet.parent
        self._links: dict[tuple[int, int], str] = {}
        self._addresses = Addresses()

    def hides(self, cell: str) -> bool:
        """Return whether a cell (`B3`) is in a row or column that is hidden, once all are read."""
        try:
            column, row = coordinate_to_tuple(cell)[::-1]
        except ValueError:
            return False
        return row in self._hidden_rows or column in self._hidden_columns

    def rows(self) -> Iterator[Row]:
        """Yield the rows that are not hidden, and a blank one where rows are missing."""
        with self._sheet._get_source() as source:
            xml = source.read()
            merged = [range_boundaries(ref.decode()) for ref in _MERGED.findall(xml)]
            self._links = _links(xml, self._book._archive, self._sheet._worksheet_path)
            del xml
        coming = sorted(merged, key=lambda area: -area[1])
        active: dict[Merged, Cell] = {}
        hidden_columns: set[str] = set()
        with self._sheet._get_source() as source:
            parser = _Reader(
                source, self._sheet._shared_strings, data_only=True, epoch=self._book.epoch,
                date_formats=self._book._date_formats,
                timedelta_formats=self._book._timedelta_formats,
            )  # fmt: skip
            expected = 1
            for number, cells in parser.parse():
                if number > MAX_ROWS:
                    break
                values = {one["column"]: self._linked(number, one) for one in cells}
                while coming and coming[-1][1] <= number:
                    area = coming.pop()
                    text = values.get(area[0], "") if area[1] == number else ""
                    active[area] = Cell(text, area[3] - area[1] + 1, area[2] - area[0] + 1)
                active = {area: cell for area, cell in active.items() if area[3] >= number}
                if number > expected:
                    yield []
                expected = number + 1
                if parser.row_dimensions.pop(str(number), {}).get("hidden") in _TRUE:
                    self.hidden["rows"] += any(values.values())
                    self._hidden_rows.add(number)
                    continue
                columns = _hidden_columns(parser)
                hidden_columns |= {str(c) for c in columns if values.get(c)}
                yield _laid_out(values, active, columns)
            self.formulas = parser.formulas
            self._hidden_columns = _hidden_columns(parser)
        if hidden_columns:
            self.hidden["columns"] += len(hidden_columns)

    def _linked(self, row: int, cell: dict[str, Any]) -> str:
        """Return a cell as it is seen, with the address that it leads to."""
        text = self._text(cell)
        address = self._links.get((row, cell["column"]), "")
        if text.startswith("=") and (found := _HYPERLINK.match(text)):
            address, text = found[1], found[2] or found[1]
        style = self._book._cell_styles[cell["style_id"]]
        if text and style.fontId and self._book._fonts[style.fontId].strike:
            text = struck(text)
        return text + self._addresses.behind(text, address) if address else text

    def _text(self, cell: dict[str, Any]) -> str:
        value = cell["value"]
        if isinstance(value, int | float) and not isinstance(value, bool):
            style = self._book._cell_styles[cell["style_id"]]
            code = BUILTIN_FORMATS.get(style.numFmtId, "General")
            if style.numFmtId >= 164:
                code = self._book._number_formats[style.numFmtId - 164]
            return formatted(value, code)
        return one_line(_text_of(value))


class _Reader(WorkSheetParser):  # type: ignore[misc]
    """openpyxl's reader, which also gives formulas that have no value."""

    formulas = 0

    def parse_cell(self, element: Any) -> dict[str, Any]:
        cell: dict[str, Any] = super().parse_cell(element)
        if cell["value"] is None and cell["data_type"] == "n":
            formula = element.find(FORMULA_TAG)
            if formula is not None:
                found = self.parse_formula(element)
                cell["value"] = str(getattr(found, "text", None) or found)
                self.formulas += 1
        return cell


def _hidden_columns(parser: WorkSheetParser) -> set[int]:
    hidden: set[int] = set()
    for column in parser.column_dimensions.values():
        if column.get("hidden") in _TRUE:
            hidden.update(range(int(column["min"]), int(column.get("max", column["min"])) + 1))
    return hidden


def _laid_out(values: dict[int, str], active: dict[Merged, Cell], hidden: set[int]) -> Row:
    places = {column: Cell(text) for column, text in values.items() if text}
    for (first, _, last, _), cell in active.items():
        if cell.text:
            places.update(dict.fromkeys(range(first, last + 1), cell))
    shown = [column for column in range(1, max(places, default=0) + 1) if column not in hidden]
    return [places.get(column, NOTHING) for column in shown]


def _text_of(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case datetime():
            return value.isoformat(" ", "seconds")
        case date() | time():
            return value.isoformat()
        case timedelta():
            seconds = round(abs(value.total_seconds()))
            sign = "-" if value < timedelta() else ""
            left = f":{seconds % 60:02}" if seconds % 60 else ""
            return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}{left}"
    return str(value)
