"""Markdown: the text is kept as it is, because models read markdown well; headings are found by
CommonMark's rules, so a `#` in a code block is none."""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt

from service.gateway.corpus.parsing.parsed_file import Heading, ParsedFile

_LINE = re.compile(r"\r\n|\r|\n")


def parse(text: str) -> ParsedFile:
    """Parse a text; its title is the first heading of level 1, if there is one."""
    starts = [0, *(end.end() for end in _LINE.finditer(text))]
    tokens = MarkdownIt("commonmark").parse(text)
    headings = [
        Heading(starts[opening.map[0]], int(opening.tag[1:]), inline.content.strip())
        for opening, inline in pairwise(tokens)
        if opening.type == "heading_open" and opening.map is not None
    ]
    title = next((h.title for h in headings if h.level == 1 and h.title), "")
    return ParsedFile(text, title, headings=headings)
