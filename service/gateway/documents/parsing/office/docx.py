"""DOCX: paragraphs, headings, lists, tables, notes, text boxes and charts of a Word document.

Kept: text as it stands with changes accepted, numbers of clauses, comments, page numbers as Word
last laid them out. Not kept, but counted: pictures, embedded objects, hidden text.
"""

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import docx
from docx.oxml.ns import qn
from lxml import etree

from kvstitch.service.gateway.documents.parsing.office import drawings
from kvstitch.service.gateway.documents.parsing.office.docx_styles import (
    Numbering,
    Styles,
    switched_on,
    value,
)
from kvstitch.service.gateway.documents.parsing.office.docx_text import (
    PAGE_BREAK,
    Found,
    edge_text,
    join_paragraphs,
    paragraph_text,
    unwrapped,
)
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Addresses,
    Bounds,
    ParsedFile,
    ParseWarning,
    TextBuilder,
    left_out_warnings,
    meaningful_title,
    one_line,
)
from kvstitch.service.gateway.documents.parsing.tables.grid import Cell
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows

MAX_NESTED = 30  # text boxes in text boxes, notes in notes
_NOTE_PARTS = {"footnotes": "footnote", "endnotes": "endnote", "comments": "comment"}
_CALLED = {"footnote": "Footnote", "endnote": "Endnote"}


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file that is known to be a DOCX."""
    document = docx.Document(BytesIO(content))
    walk = _Walk(document, bounds)
    body = document.element.body
    join_paragraphs(body)
    if next(body.iter(qn("w:lastRenderedPageBreak")), None) is not None:
        walk.next_page()
    walk.blocks(body)
    walk.edges()
    title = meaningful_title(document.core_properties.title or "")
    return walk.out.finish(title or walk.title, walk.warnings())


class _Walk:
    """Goes through the blocks of a document and adds their text."""

    def __init__(self, document: Any, bounds: Bounds) -> None:
        self.out = TextBuilder(bounds)
        self.title = ""  # the first heading of level 1
        self._relations = document.part.rels
        inside = [relation for relation in self._relations.values() if not relation.is_external]
        self._parts = {relation.rId: relation.target_part for relation in inside}
        self._by_kind = {r.reltype.rpartition("/")[2]: r.target_part for r in inside}
        self._addresses = Addresses()
        self._styles = Styles(document.styles.element)
        numbering = self._root("numbering")
        self._numbering = Numbering(numbering, self._styles)
        self._notes = self._read_notes()
        edges = ("/header", "/footer")
        self._edges = [r.target_part for r in inside if r.reltype.endswith(edges)]
        self._left_out: Counter[str] = Counter()
        self._page = 0
        self._depth = 0

    def next_page(self) -> None:
        self._page += 1
        self.out.mark("page", str(self._page))

    def warnings(self) -> list[ParseWarning]:
        return left_out_warnings(self._left_out)

    def blocks(self, parent: Any) -> None:
        for element in unwrapped(parent):
            if element.tag == qn("w:p"):
                self._paragraph(element)
            elif element.tag == qn("w:tbl"):
                self._table(element)
            elif element.tag == qn("w:altChunk"):
                self._left_out["embedded_objects"] += 1

    def edges(self) -> None:
        """Add the texts of headers and footers, each once, as they may name sender and state."""
        seen: set[str] = set()
        for part in self._edges:
            root = drawings.xml_of(part.blob)
            text = edge_text(root, self._styles)
            if text and text not in seen:
                seen.add(text)
                name = "Header" if part.partname.rpartition("/")[2].startswith("h") else "Footer"
                self.out.block(f"{name}: {text}")

    def _address(self, text: str, link: Any) -> str:
        """Return where a link leads, in brackets."""
        relation = self._relations.get(link.get(qn("r:id"), ""))
        leads_out = relation is not None and relation.is_external
        return self._addresses.behind(text, relation.target_ref) if leads_out else ""

    def _root(self, kind: str) -> Any:
        part = self._by_kind.get(kind)
        return None if part is None else drawings.xml_of(part.blob)

    def _read_notes(self) -> dict[tuple[str, str], Any]:
        notes = {}
        for kind, name in _NOTE_PARTS.items():
            root = self._root(kind)
            for note in () if root is None else root.iterchildren(qn(f"w:{name}")):
                if note.get(qn("w:type"), "normal") == "normal":
                    notes[name, note.get(qn("w:id"), "")] = note
        return notes

    def _paragraph(self, element: Any) -> None:
        found = Found(address=self._address)
        text = paragraph_text(element, self._styles, found).strip(" \t\n")
        words = text.replace(PAGE_BREAK, "")
        style, key = self._styles.of(element)
        if not words.strip():
            for _ in range(text.count(PAGE_BREAK)):
                self.next_page()
            self._add_found(found)
            return
        number = self._numbering.next(style, key)
        listed = number is not None
        before = "" if number is None else f"{number or '-'} "
        if style.level:
            for _ in range(text.count(PAGE_BREAK)):
                self.next_page()
            if style.level == 1:
                self.title = self.title or words
            self.out.heading(style.level, words if before == "- " else before + words)
            self._add_found(found)
            return
        if not listed:
            self.out.gap()
        for place, part in enumerate(text.split(PAGE_BREAK)):
            if place:
                self.next_page()
            self.out.add(part if place else before + part)
        self.out.add("\n" if listed else "\n\n")
        self._add_found(found)

    def _add_found(self, found: Found) -> None:
        """Add what a paragraph holds besides its text, behind it."""
        self._left_out.update(found.left_out)
        if self._depth > MAX_NESTED:
            return
        self._depth += 1
        for box in found.boxes:
            self.out.gap()
            self.blocks(box)
        for kind, key in found.notes:
            if (note := self._notes.pop((kind, key), None)) is not None:
                self._note(kind, note)
        for key in found.diagrams:
            if (root := self._drawing(key)) is not None:
                self.out.block("\n".join(drawings.smartart_lines(root)))
        for key in found.charts:
            if (root := self._drawing(key)) is not None:
                self.out.block(drawings.chart_title(root))
                add_rows(self.out, drawings.chart_rows(root))
        self._depth -= 1

    def _note(self, kind: str, note: Any) -> None:
        found = Found(address=self._address)
        texts = [paragraph_text(p, self._styles, found) for p in note.iter(qn("w:p"))]
        called = _CALLED.get(kind)
        if called is None:
            author = note.get(qn("w:author"), "")
            called = f"Comment by {author}" if author else "Comment"
        text = "\n".join(text.strip() for text in texts if text.strip())
        self.out.block(f"{called}: {text}" if text else "")
        self._add_found(found)

    def _drawing(self, key: str) -> Any:
        part = self._parts.get(key)
        try:
            return None if part is None else drawings.xml_of(part.blob)
        except etree.XMLSyntaxError:
            self._left_out["embedded_objects"] += 1
            return None

    def _table(self, table: Any) -> None:
        found = Found(address=self._address)
        headers, rows = self._rows(table, found)
        self.out.gap()
        add_rows(self.out, rows, headers=headers or None)
        self._add_found(found)

    def _rows(self, table: Any, found: Found) -> tuple[int, list[list[Cell | str]]]:
        """Return how many rows are marked as header, and the cells of all."""
        headers = 0
        rows: list[list[_Placed]] = []
        for row in unwrapped(table):
            properties = row.find(qn("w:trPr"))
            if row.tag != qn("w:tr") or value(properties, "w:del") is not None:
                continue
            if switched_on(properties, "w:hidden"):
                found.count("hidden_text")
                continue
            if headers == len(rows) and switched_on(properties, "w:tblHeader"):
                headers += 1
            rows.append(list(self._cells(row, properties, found)))
        return headers, [list(_given(rows, number)) for number in range(len(rows))]

    def _cells(self, row: Any, properties: Any, found: Found) -> Iterator["_Placed"]:
        before = value(properties, "w:gridBefore") or "0"
        column = min(int(before), 64) if before.isdecimal() else 0
        yield from (_Placed(number, 1, "", False) for number in range(column))
        for cell in unwrapped(row):
            if cell.tag != qn("w:tc"):
                continue
            own = cell.find(qn("w:tcPr"))
            if own is not None and own.find(qn("w:cellDel")) is not None:
                continue
            span = value(own, "w:gridSpan") or "1"
            width = max(1, min(int(span), 64)) if span.isdecimal() else 1
            merged = None if own is None else own.find(qn("w:vMerge"))
            goes_on = merged is not None and merged.get(qn("w:val")) != "restart"
            yield _Placed(column, width, self._cell_text(cell, found), goes_on)
            column += width

    def _cell_text(self, cell: Any, found: Found) -> str:
        lines = []
        for element in unwrapped(cell):
            if element.tag == qn("w:p"):
                text = paragraph_text(element, self._styles, found)
                for _ in range(text.count(PAGE_BREAK)):
                    self.next_page()
                style, key = self._styles.of(element)
                number = self._numbering.next(style, key) if text.strip() else None
                lines.append((f"{number} " if number else "") + text.replace(PAGE_BREAK, ""))
            elif element.tag == qn("w:tbl"):
                _, rows = self._rows(element, found)
                lines += [", ".join(t for t in map(_text, row) if t) + ";" for row in rows]
        return "\n".join(lines)


class _Placed:
    """A cell of a row: its first column of the grid, and whether it is the one above, going on."""

    def __init__(self, column: int, width: int, text: str, goes_on: bool) -> None:
        self.column, self.width, self.text, self.goes_on = column, width, text, goes_on


def _given(rows: "list[list[_Placed]]", number: int) -> Iterator[Cell | str]:
    """Yield the cells of a row that begin in it, with how many rows they cover."""
    for cell in rows[number]:
        if cell.goes_on and number:
            continue
        covered = 1
        for below in rows[number + 1 :]:
            if not any(other.goes_on and other.column == cell.column for other in below):
                break
            covered += 1
        yield Cell(cell.text, covered, cell.width)


def _text(cell: Cell | str) -> str:
    return one_line(cell if isinstance(cell, str) else cell.text)
