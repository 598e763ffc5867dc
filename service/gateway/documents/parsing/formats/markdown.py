"""Markdown: the text is kept as it is, because models read markdown well; headings are found by
CommonMark's rules, so a `#` in a code block is none."""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt

from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, heading

_LINE = re.compile(r"\r\n|\r|\n")


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text in UTF-8; its title is the first heading of level 1, if there is one."""
    text = content.decode("utf-8-sig")
    starts = [0, *(end.end() for end in _LINE.finditer(text))]
    found = [
        (starts[opening.map[0]], opening.tag, inline.content.strip())
        for opening, inline in pairwise(MarkdownIt("commonmark").parse(text))
        if opening.type == "heading_open" and opening.map is not None
    ]
    title = next((text for _, tag, text in found if tag == "h1" and text), "")
    return ParsedFile(text, title, [heading(start, text) for start, _, text in found])
