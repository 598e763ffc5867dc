"""OpenDocument: texts (ODT), sheets (ODS) and slides (ODP), whose content is one XML part.

Kept: text with changes accepted, numbers of lists and headings, tables, notes, comments, formulas,
text boxes. Not kept, but counted: pictures, charts and other objects, hidden text, sheets, rows,
columns and slides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from zipfile import ZipFile

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.office.drawings import xml_of
from kvstitch.service.gateway.documents.parsing.office.formats import open_zip
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Bounds,
    ParsedFile,
    ParseWarning,
    TextBuilder,
    left_out_warnings,
    meaningful_title,
    one_line,
    picture_text,
    places_warning,
)
from kvstitch.service.gateway.documents.parsing.tables.grid import MAX_COLUMNS, Cell
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows
from kvstitch_formats.open_document_text import (
    SKIPPED,
    Numbers,
    Paragraphs,
    Styles,
    name_of,
    value,
)

MAX_REPEATED = 1000  # rows that are all alike


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file that is known to be an OpenDocument."""
    with open_zip(content) as archive:
        names = archive.namelist()
        manifest = "META-INF/manifest.xml"
        if manifest in names and b"encryption-data" in archive.read(manifest):
            raise InvalidRequest("it is encrypted: remove the password first")
        walk = _Walk(archive, bounds)
        body = next(child for child in walk.root if name_of(child) == "body")
        for part in body:
            if name_of(part) == "spreadsheet":
                walk.sheets(part)
            elif name_of(part) in ("presentation", "drawing"):
                walk.slides(part)
            else:
                walk.blocks(part)
        title = ""
        if "meta.xml" in names:
            meta = xml_of(archive.read("meta.xml"))
            title = meta.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""
        return walk.out.finish(meaningful_title(title) or walk.title, walk.warnings())


def parse_flat(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file that has all parts in one (.fodt, .fods, .fodp)."""
    if b"<!ENTITY" in content[:4096]:
        raise InvalidRequest("it declares entities: save it anew")
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        archive.writestr("content.xml", content)
        archive.writestr("meta.xml", content)
    return parse(packed.getvalue(), bounds)


class _Walk:
    """Goes through the content and adds its text."""

    def __init__(self, archive: ZipFile, bounds: Bounds) -> None:
        self.root = xml_of(archive.read("content.xml"))
        self.out = TextBuilder(bounds)
        self.title = ""  # the first heading of level 1
        self._bounds = bounds
        named = [xml_of(archive.read("styles.xml"))] if "styles.xml" in archive.namelist() else []
        self._styles = Styles([*named, self.root])
        self._numbers = Numbers(self._styles)
        self._paragraphs = Paragraphs(archive, self._styles)
        self._left_out = self._paragraphs.left_out
        self._hidden_cells: Counter[str] = Counter()
        self._hidden: dict[str, list[str]] = {"slides": [], "sheets": []}

    def warnings(self) -> list[ParseWarning]:
        found = [
            places_warning(f"hidden_{what}", f"hidden {what} are left out: {{places}}", places)
            for what, places in self._hidden.items()
            if places
        ]
        if self._hidden_cells:
            said = " and ".join(f"{n} {what}" for what, n in sorted(self._hidden_cells.items()))
            message = f"hidden cells are left out: {said}"
            found.append(ParseWarning("hidden_cells", message, count=self._hidden_cells.total()))
        return [*found, *left_out_warnings(self._left_out)]

    def blocks(self, parent: Any) -> None:
        for element in parent:
            name = name_of(element)
            if name in SKIPPED:
                continue
            if name in ("p", "h"):
                self._paragraph(element)
            elif name in ("list", "numbered-paragraph"):
                self._list(element)
            elif name == "table":
                self._table(element)
            elif name == "frame":
                self._frame(element)
            elif name == "annotation":
                self._comment(element)
            elif name == "section" and value(element, "display") == "none":
                self._left_out["hidden_text"] += 1
            else:
                self.blocks(element)

    def slides(self, presentation: Any) -> None:
        pages = [child for child in presentation if name_of(child) == "page"]
        self._bounds.check_pages(len(pages), "slides")
        for number, page in enumerate(pages, 1):
            if self._styles.hides_slide(value(page, "style-name")):
                self._hidden["slides"].append(str(number))
                continue
            self.out.gap()
            self.out.mark("slide", str(number))
            frames = {value(child, "class"): child for child in reversed(page)}
            if (title := frames.get("title")) is not None and self._is_filled(title):
                text = one_line(
                    " ".join(self._paragraphs.text(p) for p in title.iter() if name_of(p) == "p")
                )
                self.title = self.title or text
                self.out.heading(2, text)
            for child in page:
                if name_of(child) == "notes":
                    texts = [self._paragraphs.text(p) for p in child.iter() if name_of(p) == "p"]
                    said = "\n".join(text for text in texts if text.strip())
                    self.out.block(f"Notes: {said}" if said else "")
                elif child is not title and self._is_filled(child):
                    self.blocks([child])

    def sheets(self, spreadsheet: Any) -> None:
        tables = [child for child in spreadsheet if name_of(child) == "table"]
        self._bounds.check_pages(len(tables), "sheets")
        for table in tables:
            name = value(table, "name")
            if self._styles.hides_table(value(table, "style-name")):
                self._hidden["sheets"].append(name)
                continue
            self.out.gap()
            self.out.mark("sheet", name)
            self.out.block(f"## {name}")
            if not add_rows(self.out, self._rows(table)):
                self.out.block("(no rows)")
            self._paragraphs.behind += [child for child in table if name_of(child) == "shapes"]
            self._add_behind()

    def _is_filled(self, shape: Any) -> bool:
        return value(shape, "placeholder") != "true"

    def _paragraph(self, element: Any, number: str | None = None) -> None:
        text = self._paragraphs.text(element).strip(" \t\n")
        if text and name_of(element) == "h":
            level = int(value(element, "outline-level") or 1)
            number = number or self._numbers.heading(element, level)
            self.title = self.title or (one_line(text) if level == 1 else "")
            self.out.heading(level, f"{number} {text}" if number else text)
        elif text and number is None:
            self.out.block(text)
        elif text:
            self.out.line(f"{number or '-'} {text}")
        self._add_behind()

    def _list(self, element: Any, depth: int = 0, style: str = "") -> None:
        style = value(element, "style-name") or style
        if name_of(element) == "numbered-paragraph":
            depth = int(value(element, "level") or 1) - 1
            self._item(element, depth, style, [*element])
            return
        self._numbers.begin(element, depth, style)
        for item in element:
            self._item(item, depth, style, [*item])
        if not depth:
            self.out.gap()

    def _item(self, item: Any, depth: int, style: str, children: list[Any]) -> None:
        number: str | None = None
        counted = name_of(item) != "list-header"
        for child in children:
            name = name_of(child)
            if name == "list":
                self._list(child, depth + 1, style)
            elif name in ("p", "h"):
                if counted:
                    number, counted = self._numbers.item(item, depth, style), False
                    self._paragraph(child, number)
                else:
                    self._paragraph(child)
            elif name != "number":
                self.blocks([child])

    def _add_behind(self) -> None:
        behind = self._paragraphs.behind
        while behind:
            element = behind.pop(0)
            name = name_of(element)
            if name == "annotation":
                self._comment(element)
            elif name == "note":
                called = "Endnote" if value(element, "note-class") == "endnote" else "Footnote"
                texts = [self._paragraphs.text(p) for p in element.iter() if name_of(p) == "p"]
                self.out.block(f"{called}: " + "\n".join(text.strip() for text in texts))
            else:
                self.blocks([element] if name in ("frame", "table") else element)

    def _comment(self, element: Any) -> None:
        author = element.findtext("{http://purl.org/dc/elements/1.1/}creator") or ""
        texts = [self._paragraphs.text(p).strip() for p in element.iter() if name_of(p) == "p"]
        called = f"Comment by {author}" if author else "Comment"
        self.out.block(f"{called}: " + "\n".join(texts) if any(texts) else "")

    def _frame(self, frame: Any) -> None:
        """Add what is in a frame: a text box, a table, else a picture or an object is counted."""
        inside = [child for child in frame if name_of(child) not in SKIPPED]
        names = [name_of(child) for child in inside]
        if "text-box" in names or "table" in names:
            for child in inside:
                if name_of(child) == "text-box":
                    self.blocks(child)
                elif name_of(child) == "table":
                    self._table(child)
        elif "object" in names or "object-ole" in names:
            self._left_out["embedded_objects"] += 1
        elif "image" in names:
            self._left_out["pictures"] += 1
            said = (e.text or "" for e in frame if name_of(e) in ("title", "desc"))
            self.out.block(picture_text(next(filter(str.strip, said), "")))

    def _table(self, table: Any) -> None:
        """Add a table of a text; those in its cells stand behind it."""
        headers = sum(1 for row, head in _table_rows(table) if head)
        self.out.gap()
        add_rows(self.out, self._rows(table), headers=headers or None)
        self._add_behind()

    def _rows(self, table: Any) -> Iterator[list[Cell | str]]:
        hidden = self._hidden_columns(table)
        for row, _ in _table_rows(table):
            cells = list(self._cells(row, hidden))
            if value(row, "visibility") in ("collapse", "filter"):
                self._hidden_cells["rows"] += any(cell.text for cell in cells)
                continue
            repeated = int(value(row, "number-rows-repeated") or 1)
            # Blank rows may be repeated to the end of the sheet.
            filled = any(cell.text for cell in cells)
            for _ in range(min(repeated, MAX_REPEATED) if filled else 1):
                yield [*cells]

    def _hidden_columns(self, table: Any) -> set[int]:
        hidden: set[int] = set()
        at = 0
        for column in table.iter():
            if name_of(column) == "table-column":
                count = min(int(value(column, "number-columns-repeated") or 1), MAX_COLUMNS)
                if value(column, "visibility") in ("collapse", "filter"):
                    hidden.update(range(at, at + count))
                at += count
        return hidden

    def _cells(self, row: Any, hidden: set[int]) -> Iterator[Cell]:
        cells = [c for c in row if name_of(c) in ("table-cell", "covered-table-cell")]
        while cells and not len(cells[-1]):
            cells.pop()
        at = 0
        for cell in cells:
            repeated = min(int(value(cell, "number-columns-repeated") or 1), MAX_COLUMNS)
            columns = int(value(cell, "number-columns-spanned") or 1)
            text = self._cell_text(cell) if name_of(cell) == "table-cell" else ""
            for place in range(at, min(at + repeated, MAX_COLUMNS)):
                if name_of(cell) == "table-cell" and place not in hidden:
                    yield Cell(text, int(value(cell, "number-rows-spanned") or 1), columns)
            at += repeated

    def _cell_text(self, cell: Any) -> str:
        texts = []
        for child in cell:
            if name_of(child) in ("p", "h", "list"):
                texts += [
                    self._paragraphs.text(p) for p in child.iter() if name_of(p) in ("p", "h")
                ]
            elif name_of(child) not in SKIPPED:
                self._paragraphs.behind.append(child)  # comments and shapes
        return "\n".join(texts)


def _table_rows(parent: Any, head: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield (row, whether it is marked as a header) of a table."""
    for child in parent:
        name = name_of(child)
        if name == "table-row":
            yield child, head
        elif name in ("table-header-rows", "table-rows", "table-row-group"):
            yield from _table_rows(child, head or name == "table-header-rows")
