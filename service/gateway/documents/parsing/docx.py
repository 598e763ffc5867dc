"""DOCX: paragraphs, headings, lists and tables of a Word document, in their order.

Kept: text as it stands with changes accepted, page numbers as Word last laid them out. Not kept:
headers, footers, footnotes, comments, text boxes, pictures, and the numbers of numbered lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import docx
from docx.oxml.ns import qn
from docx.oxml.xmlchemy import BaseOxmlElement

from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder
from service.gateway.documents.parsing.tables import add_rows

PAGE_BREAK = "\f"
_HEADING = re.compile(r"heading ([1-9])")
_SKIPPED = {qn("w:del"), qn("w:txbxContent"), qn("w:pict"), qn("w:drawing"), qn("w:object")}
_SKIPPED |= {"{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"}
_CHARACTERS = {
    qn("w:tab"): "\t",
    qn("w:br"): "\n",
    qn("w:cr"): "\n",
    qn("w:noBreakHyphen"): "-",
    qn("w:lastRenderedPageBreak"): PAGE_BREAK,
}


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file that is known to be a DOCX.

    Raises:
        InvalidRequest: It exceeds a limit.
        Exception: Whatever python-docx raises for a broken file.
    """
    document = docx.Document(BytesIO(content))
    walk = _Walk(_Styles(document.styles.element), bounds)
    body = document.element.body
    if next(body.iter(qn("w:lastRenderedPageBreak")), None) is not None:
        walk.next_page()
    walk.blocks(body)
    return walk.out.finish(document.core_properties.title or walk.title)


class _Walk:
    def __init__(self, styles: _Styles, bounds: Bounds) -> None:
        self.out = TextBuilder(bounds)
        self.title = ""  # the first heading of level 1
        self._styles = styles
        self._page = 0

    def next_page(self) -> None:
        self._page += 1
        self.out.mark("page", str(self._page))

    def blocks(self, parent: BaseOxmlElement) -> None:
        for element in parent:
            if element.tag == qn("w:p"):
                self._paragraph(element)
            elif element.tag == qn("w:tbl"):
                self.out.gap()
                add_rows(self.out, self._rows(element))
            elif element.tag == qn("w:sdt"):  # a content control
                for inside in element.iterchildren(qn("w:sdtContent")):
                    self.blocks(inside)

    def _paragraph(self, element: BaseOxmlElement) -> None:
        text = _text(element).strip(" \t\n")
        words = text.replace(PAGE_BREAK, "")
        style = self._styles.of(element)
        level = style.level
        if level or not words.strip():
            for _ in range(text.count(PAGE_BREAK)):
                self.next_page()
            if level == 1:
                self.title = self.title or words
            self.out.heading(level or 1, words)
            return
        if not style.listed:
            self.out.gap()
        for number, part in enumerate(text.split(PAGE_BREAK)):
            if number:
                self.next_page()
            self.out.add(f"- {part}" if style.listed and not number else part)
        self.out.add("\n" if style.listed else "\n\n")

    def _rows(self, table: BaseOxmlElement) -> Iterator[list[str]]:
        """Yield cells by column of the grid; one that spans rows stands in each of them."""
        above: list[str] = []
        for row in table.iterchildren(qn("w:tr")):
            cells: list[str] = []
            breaks = 0
            for cell in row.iterchildren(qn("w:tc")):
                text = "\n".join(_text(p) for p in cell.iter(qn("w:p")))
                breaks += text.count(PAGE_BREAK)
                span = cell.find(f"{qn('w:tcPr')}/{qn('w:gridSpan')}")
                merged = cell.find(f"{qn('w:tcPr')}/{qn('w:vMerge')}")
                if merged is not None and merged.get(qn("w:val")) != "restart":
                    text = above[len(cells)] if len(cells) < len(above) else ""
                width = int(span.get(qn("w:val"), "1")) if span is not None else 1
                cells += [text.replace(PAGE_BREAK, ""), *[""] * (min(width, 64) - 1)]
            for _ in range(breaks):
                self.next_page()
            above = cells
            yield cells


def _text(paragraph: BaseOxmlElement) -> str:
    """Return a paragraph's text, with inserted and without deleted words."""
    out: list[str] = []
    stack = [iter(paragraph)]
    while stack:
        element = next(stack[-1], None)
        if element is None:
            stack.pop()
        elif element.tag == qn("w:t"):
            out.append(element.text or "")
        elif element.tag in _CHARACTERS:
            out.append(_CHARACTERS[element.tag])
        elif element.tag not in _SKIPPED:
            stack.append(iter(element))
    return "".join(out)


@dataclass(frozen=True)
class _Style:
    """What a paragraph is: a heading of a level from 1 to 9, in a list, or neither."""

    level: int = 0
    listed: bool = False
    based_on: str = ""

    @classmethod
    def of(cls, properties: BaseOxmlElement | None, based_on: str = "", level: int = 0) -> _Style:
        if properties is None:
            return cls(level, False, based_on)
        written = properties.find(qn("w:outlineLvl"))
        value = "9" if written is None else written.get(qn("w:val"), "9")  # 9: body text
        own = int(value) + 1 if value.isdigit() and int(value) < 9 else 0
        return cls(level or own, properties.find(qn("w:numPr")) is not None, based_on)


class _Styles:
    """The styles of a document by id; each has what those that it is based on have."""

    def __init__(self, styles: BaseOxmlElement) -> None:
        self._styles: dict[str, _Style] = {}
        for style in styles.iterchildren(qn("w:style")):
            name = _value(style.find(qn("w:name"))).lower()
            found = _HEADING.fullmatch(name)
            level = int(found[1]) if found else int(name == "title")
            base = _value(style.find(qn("w:basedOn")))
            key = style.get(qn("w:styleId"), "")
            self._styles[key] = _Style.of(style.find(qn("w:pPr")), base, level)

    def of(self, paragraph: BaseOxmlElement) -> _Style:
        """Return the style of a paragraph: its own properties come before its styles'."""
        properties = paragraph.find(qn("w:pPr"))
        found = _Style.of(properties)
        name = "" if properties is None else _value(properties.find(qn("w:pStyle")))
        seen: set[str] = set()
        while name in self._styles and name not in seen:
            seen.add(name)
            style = self._styles[name]
            found = _Style(found.level or style.level, found.listed or style.listed)
            name = style.based_on
        return found


def _value(element: BaseOxmlElement | None) -> str:
    return "" if element is None else str(element.get(qn("w:val"), ""))
