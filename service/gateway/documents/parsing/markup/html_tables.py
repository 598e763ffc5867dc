"""Tables of HTML pages: which of them hold data, their rows, and how many rows name the columns.

Tables that only lay a page out, as in mails, are read like other blocks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from selectolax.lexbor import LexborNode

from kvstitch.service.gateway.documents.parsing.markup.page_parts import MARKER
from kvstitch.service.gateway.documents.parsing.markup.page_tree import BLOCKS, walk
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, TextBuilder, one_line
from kvstitch.service.gateway.documents.parsing.tables.grid import Cell
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows

MAX_LAYOUT_CHARS = (
    1500  # a cell with more text, in a table without any header, is a column of a page
)
_SECTIONS = ("thead", "tbody", "tfoot")
_BREAKS = BLOCKS | {"br", "td", "th"}
_DIGITS = re.compile(r"\s*(\d{1,5})")


@dataclass(frozen=True)
class HtmlTable:
    """A table that holds data."""

    titles: list[str]
    rows: list[list[Cell]]
    headers: int | None

    def text(self, bounds: Bounds) -> str:
        out = TextBuilder(bounds)
        for title in self.titles:
            out.line(title)
        add_rows(out, self.rows, headers=self.headers)
        return out.finish().text


def read_table(table: LexborNode) -> HtmlTable | None:
    """Return the table of an element `table`; None if it only lays out what is in it."""
    found = list(_rows(table))
    cells = [cell for _, row in found for cell in row]
    named = any(cell.tag == "th" for cell in cells) or any(top for top, _ in found)
    caption = next((c for c in table.iter() if c.tag == "caption"), None)
    if (table.attributes.get("role") or "") in ("presentation", "none"):
        return None
    if not named and caption is None:
        nested = table.css_first("table table, h1, h2, h3, h4, h5, h6") is not None
        narrow = len(found) < 2 or max(len(row) for _, row in found) < 2
        if nested or narrow or any(len(_text(cell)) > MAX_LAYOUT_CHARS for cell in cells):
            return None
    titles = [] if caption is None else [_text(caption)]
    rows = [[_cell(cell) for cell in row] for _, row in found]
    heads = [top or all(cell.tag == "th" for cell in row) for top, row in found]
    while len(rows) > 1 and heads[0] and len([c for c in rows[0] if c.text]) < 2:
        titles += [cell.text for cell in rows[0]]
        del rows[0], heads[0], found[0]
    count = next((n for n, is_head in enumerate(heads) if not is_head), len(heads))
    if count:
        return HtmlTable(titles, rows, count)
    first = [row[0].tag == "th" for _, row in found if row]
    if len(first) == len(rows) and all(first) and all(len(row) == 2 for row in rows):
        # Every row names its own value.
        rows = [[Cell(row[0].text.rstrip(":") + ":", row[0].rows), *row[1:]] for row in rows]
        return HtmlTable(titles, rows, 0)
    return HtmlTable(titles, rows, None)


def _rows(table: LexborNode) -> Iterator[tuple[bool, list[LexborNode]]]:
    """Yield (whether it is in the head, cells) of the table's own rows that are not empty."""
    for child in table.iter():
        inside = child.iter() if child.tag in _SECTIONS else iter([child])
        for row in inside:
            if row.tag == "tr":
                cells = [cell for cell in row.iter() if cell.tag in ("td", "th")]
                if cells:
                    yield child.tag == "thead", cells


def _cell(cell: LexborNode) -> Cell:
    rows, columns = _span(cell, "rowspan"), _span(cell, "colspan")
    return Cell(_text(cell), rows or 65_535, columns or 1)  # rowspan=0: down to the end


def _span(cell: LexborNode, name: str) -> int:
    found = _DIGITS.match(cell.attributes.get(name) or "1")
    return int(found[1]) if found else 1


def _text(cell: LexborNode) -> str:
    """Return all of a cell on one line; items of lists are set apart by semicolons."""
    parts: list[str] = []
    last = ""  # character
    sign: str | None = None  # of an item whose text has not begun
    for entering, node in walk(cell):
        if node.tag == "-text":
            text = node.text_content or ""
            if sign is not None and text.strip():
                parts.append(f"; {sign}" if last not in ("", ":") else sign)
                sign = None
            last = text.strip()[-1:] or last
            parts.append(text)
        elif node.tag == "li":
            sign = f"{sign or ''}{node.attributes.get(MARKER) or ''} " if entering else None
        elif node.tag in _BREAKS:
            parts.append(" ")
    return one_line("".join(parts)).replace(" ;", ";")
