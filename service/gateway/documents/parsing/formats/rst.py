"""reStructuredText: the text is kept as it is; headings are found by docutils, which includes no
other file and runs nothing."""

from __future__ import annotations

import re
from itertools import pairwise

from docutils import nodes
from docutils.core import publish_doctree

from service.gateway.documents.parsing.parsed_file import Bounds, Mark, ParsedFile, heading

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1+\s*")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
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


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text in UTF-8; its title is its first heading."""
    text = content.decode("utf-8-sig")
    tree = publish_doctree(text, settings_overrides=_SETTINGS)
    titles = [
        title.rawsource.strip() or title.astext()
        for title in tree.findall(nodes.title)
        if isinstance(title.parent, nodes.section)
    ]
    marks = _find(text, titles)
    return ParsedFile(text, marks[0][2] if marks else "", marks)


def _find(text: str, titles: list[str]) -> list[Mark]:
    """The places of these titles, which come in this order, each above a line of punctuation."""
    lines = [match for match in _LINE.finditer(text) if match[0]]
    marks: list[Mark] = []
    for line, below in pairwise(lines):
        if len(marks) == len(titles):
            break
        title = titles[len(marks)]
        if line[0].strip() == title and _ADORNMENT.fullmatch(below[0]):
            marks.append(heading(line.start(), title))
    return marks
