"""Markdown and reStructuredText: the text is kept as it is, because models read both well. Only
tables are rewritten, so that every row names its columns.

Headings are found by CommonMark's rules, so a `#` in a code block is none, and by docutils, which
includes no other file and runs nothing.
"""

from __future__ import annotations

import re
from itertools import pairwise

from service.gateway.documents.parsing.charsets import Decoded, decode
from service.gateway.documents.parsing.markup import rst_tables
from service.gateway.documents.parsing.markup.markdown_tables import LINE_END, with_named_rows
from service.gateway.documents.parsing.parsed_file import (
    Bounds,
    Mark,
    ParsedFile,
    heading,
    left_out_warnings,
)

_PICTURE_DATA = re.compile(r"data:[\w.+/-]+(?:;[\w=.-]+)*;base64,[A-Za-z0-9+/=_%-]{100,}")
_XML_CHARSET = re.compile(rb"""<\?xml\b[^>]{0,99}?\bencoding\s*=\s*["']([\w.:-]{1,40})["']""", re.A)


def _without_picture_data(decoded: Decoded) -> Decoded:
    """Leave out the bytes of pictures that stand in a text: they would be chunks of noise."""
    text, count = _PICTURE_DATA.subn(lambda m: m[0].partition(",")[0] + ",…", decoded.text)
    if not count:
        return decoded
    return Decoded(text, (*decoded.warnings, *left_out_warnings({"pictures": count})))


def parse_markdown(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text; its title is the first heading of level 1, if there is one."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    decoded = _without_picture_data(decode(content))
    text = with_named_rows(decoded.text, parser.parse(decoded.text), bounds)
    starts = [0, *(end.end() for end in LINE_END.finditer(text))]
    found = [
        (starts[opening.map[0]], opening.tag, inline.content.strip())
        for opening, inline in pairwise(parser.parse(text))
        if opening.type == "heading_open" and opening.map is not None
    ]
    title = next((text for _, tag, text in found if tag == "h1" and text), "")
    return ParsedFile(
        text, title, [heading(start, text) for start, _, text in found], decoded.warnings
    )


_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*\s*")
_LINE_WITH_END = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_SETTINGS = {
    "_disable_config": True,
    "doctitle_xform": False,
    "file_insertion_enabled": False,
    "halt_level": 5,
    "line_length_limit": 1_000_000,
    "raw_enabled": False,
    "report_level": 5,
    "syntax_highlight": "none",
}


def parse_rst(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text; its title is its first heading."""
    # Only here: each of the two libraries takes a part of a second to load.
    from docutils import nodes
    from docutils.core import publish_doctree

    decoded = _without_picture_data(decode(content))

    def read(text: str) -> nodes.document:
        return publish_doctree(text, settings_overrides=_SETTINGS)

    text = rst_tables.with_named_rows(decoded.text, read, bounds)
    tree = read(text)
    titles = [
        title.rawsource.strip() or title.astext()
        for title in tree.findall(nodes.title)
        if isinstance(title.parent, nodes.section)
    ]
    marks = _find(text, titles)
    return ParsedFile(text, marks[0][2] if marks else "", marks, decoded.warnings)


def _find(text: str, titles: list[str]) -> list[Mark]:
    """Return the places of titles, which come in this order, each above a line of punctuation."""
    lines = [match for match in _LINE_WITH_END.finditer(text) if match[0]]
    marks: list[Mark] = []
    for line, below in pairwise(lines):
        if len(marks) == len(titles):
            break
        title = titles[len(marks)]
        if line[0].strip() == title and _ADORNMENT.fullmatch(below[0]):
            marks.append(heading(line.start(), title))
    return marks


def parse_text(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a plain text: only its charset is to be found. XML, which is text, too, may name it."""
    named = _XML_CHARSET.match(content)
    decoded = _without_picture_data(decode(content, named[1].decode() if named else ""))
    return ParsedFile(decoded.text, warnings=decoded.warnings)
