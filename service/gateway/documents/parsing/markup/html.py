"""HTML pages to the text that a reader sees, one block per line. Headings are written as
Markdown's, as everywhere (see `TextBuilder`).

The tree is walked without recursion, because pages may nest as deep as their author likes.
"""

import re
from dataclasses import replace

from selectolax.lexbor import LexborNode

from kvstitch.service.gateway.documents.parsing import charsets
from kvstitch.service.gateway.documents.parsing.markup.html_tables import HtmlTable, read_table
from kvstitch.service.gateway.documents.parsing.markup.page_parts import MARKER, write_parts
from kvstitch.service.gateway.documents.parsing.markup.page_tree import BLOCKS, page_tree, walk
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    SOFT_HYPHEN,
    Bounds,
    Mark,
    ParsedFile,
    heading,
    left_out_warnings,
)

_INVISIBLE = ["iframe", "object", "head"]
_HEADING = re.compile(r"h[1-6]")
_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?([A-Za-z0-9_.:-]{1,40})""", re.I)
_SPACE = re.compile(r"\s+")


def label_of(content: bytes) -> str:
    """Return the charset that a page names in `<meta charset>`; "" if it names none."""
    found = _CHARSET.search(content[:2048])
    return found[1].decode("ascii") if found else ""


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a page; its title is that of its head, else its first heading of level 1."""
    decoded = charsets.decode(content, label_of(content))
    tree, left_out = page_tree(decoded.text)
    write_parts(tree, left_out)
    named = tree.css_first("title")
    title = "" if named is None else _SPACE.sub(" ", named.text()).strip()
    tree.strip_tags(_INVISIBLE)
    warnings = (*decoded.warnings, *left_out_warnings(left_out))
    if tree.body is None:
        return ParsedFile("", title, warnings=warnings)
    lines = _LineCollector()
    inside: LexborNode | None = None  # a table that was read as such
    for entering, node in walk(tree.body):
        if inside is not None:
            inside = None if not entering and node == inside else inside
        elif entering and node.tag == "table" and (table := read_table(node)) is not None:
            lines.table(table, bounds)
            inside = node
        else:
            lines.visit(entering, node)
    parsed = lines.finish(title)
    bounds.check_chars(len(parsed.text))
    return replace(parsed, warnings=warnings)


class _LineCollector:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0
        self._line = ""
        self._level = 0  # of the heading around the current text, 0 outside
        self._preformatted = 0
        self._marker = ""  # number or dash of an item whose text has not begun
        self._top = ""  # the first heading of level 1
        self._marks: list[Mark] = []

    def visit(self, entering: bool, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag == "-text":
            self._text(node.text_content or "")
        elif tag == "br" and entering:
            if self._level:
                self._text(" ")
            else:
                self._end()
        elif tag in ("td", "th") and not entering:
            self._line += " | " if self._line != self._marker else ""
        elif tag in BLOCKS:
            self._end()
            if tag == "pre":
                self._preformatted += 1 if entering else -1
            if tag == "li" and entering:
                self._drop_dash()  # of an item that begins with a list
                self._line += f"{node.attributes.get(MARKER) or '-'} "
                self._marker = self._line
            elif tag == "li" and self._marker:  # it has no text
                self._line = self._marker = ""
            if _HEADING.fullmatch(tag):
                self._level = int(tag[1]) if entering else 0
                self._drop_dash()

    def table(self, table: HtmlTable, bounds: Bounds) -> None:
        self._end()
        self._line, self._marker = self._marker.removesuffix("- "), ""
        self._end()  # a number above its table
        for line in table.text(bounds).splitlines():
            self._line = line
            self._end()

    def finish(self, title: str) -> ParsedFile:
        self._end()
        return ParsedFile("\n".join(self._lines), title or self._top, self._marks)

    def _drop_dash(self) -> None:
        if self._marker:
            self._line = self._marker = self._marker.removesuffix("- ")

    def _text(self, text: str) -> None:
        text = text.replace(SOFT_HYPHEN, "")
        if self._preformatted:
            first, *others = text.split("\n")
            self._line += first
            for line in others:
                self._end()
                self._line += line
            return
        text = _SPACE.sub(" ", text)
        self._line += text.lstrip() if not self._line or self._line.endswith(" ") else text

    def _end(self) -> None:
        if self._marker and self._line == self._marker:
            return
        self._marker = ""
        line = self._line.rstrip() if self._preformatted else self._line.strip().removesuffix(" |")
        self._line = ""
        if not line or line == "-":
            return
        if self._level:
            self._marks.append(heading(self._size, line))
            if self._level == 1:
                self._top = self._top or line
            line = f"{'#' * self._level} {line}"
        self._lines.append(line)
        self._size += len(line) + 1
