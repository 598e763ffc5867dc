"""Plain text and Markdown: the text is kept as it is, because models read it well. Only tables are
rewritten, so that every row names its columns.

Headings are found by CommonMark's rules, so a `#` in a code block is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from kvstitch.service.gateway.documents.parsing.charsets import Decoded, decode
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Bounds,
    ParsedFile,
    TextBuilder,
    heading,
    left_out_warnings,
)
from kvstitch.service.gateway.documents.parsing.tables.grid import Cell
from kvstitch.service.gateway.documents.parsing.tables.rows import add_rows

if TYPE_CHECKING:
    from markdown_it.token import Token

LINE_END = re.compile(r"\r\n|\r|\n")
_BREAK = re.compile(r"<br\s*/?>", re.I)
_HTML_TABLE = re.compile(r"\s*<table[\s>]", re.I)


def with_named_rows(text: str, tokens: Sequence[Token], bounds: Bounds) -> str:
    """Return a text whose tables are lines that name their columns."""
    starts = [0, *(end.end() for end in LINE_END.finditer(text)), len(text)]
    out: list[str] = []
    done = 0
    for at, token in enumerate(tokens):
        if token.level or token.map is None or token.map[0] >= len(starts) - 1:
            continue
        if token.type == "table_open":
            written = _rows(tokens[at:], bounds)
        elif token.type == "html_block" and _HTML_TABLE.match(token.content):
            written = _html(token.content, bounds)
        else:
            continue
        if written:
            start, end = starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)]
            out += [text[done:start], written, "\n"]
            done = end
    return "".join([*out, text[done:]])


_PIPE = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")


def with_whole_rows(text: str, tokens: Sequence[Token]) -> str:
    """Return a text without rows that have more cells than there are columns, of which a table
    shows no more: pipes in code, which most programs take for text, and then the last ones are
    escaped."""
    lines = [
        text[a:b] for a, b in pairwise([0, *(e.end() for e in LINE_END.finditer(text)), len(text)])
    ]
    for at, token in enumerate(tokens):
        if token.type == "table_open" and token.map is not None:
            row = [each.type for each in tokens[at:]]
            columns = row[: row.index("tr_close")].count("th_open")
            for number in range(token.map[0] + 2, min(token.map[1], len(lines))):
                line = lines[number]
                if len(_cuts(line)) >= columns:
                    line = _CODE.sub(lambda code: _PIPE.sub(r"\|", code[0]), line)
                for place in reversed(_cuts(line)[columns - 1 :]):
                    line = f"{line[:place]}\\{line[place:]}"
                lines[number] = line
    return "".join(lines)


def _cuts(row: str) -> list[int]:
    """Return where pipes stand between cells."""
    pipes = (pipe.start() for pipe in _PIPE.finditer(row))
    return [place for place in pipes if row[:place].strip() and row[place + 1 :].strip()]


def _rows(tokens: Sequence[Token], bounds: Bounds) -> str:
    rows: list[list[Cell | str]] = []
    for at, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(_BREAK.sub(" ", tokens[at + 1].content))
        elif token.type == "table_close":
            break
    out = TextBuilder(bounds)
    # A table whose header is blank is written so because Markdown knows none without.
    add_rows(out, rows, headers=1 if any(map(str, rows[0])) else None)
    return out.finish().text


def _html(content: str, bounds: Bounds) -> str:
    from selectolax.lexbor import LexborHTMLParser

    from kvstitch.service.gateway.documents.parsing.markup.html_tables import read_table

    tree = LexborHTMLParser(content)
    tables = tree.css("table")
    outside = tree.body is not None and tree.body.child != (tables[0] if tables else None)
    table = read_table(tables[0]) if len(tables) == 1 and not outside else None
    return "" if table is None else table.text(bounds)


_PICTURE_DATA = re.compile(r"data:[\w.+/-]+(?:;[\w=.-]+)*;base64,[A-Za-z0-9+/=_%-]{100,}")


def without_picture_data(decoded: Decoded) -> Decoded:
    """Leave out the bytes of pictures that stand in a text: they would be chunks of noise."""
    text, count = _PICTURE_DATA.subn(lambda m: m[0].partition(",")[0] + ",…", decoded.text)
    if not count:
        return decoded
    return Decoded(text, (*decoded.warnings, *left_out_warnings({"pictures": count})))


_BLOCK = re.compile(
    r"(?P<mark>---|\+\+\+)[ \t]*\r?\n(?P<body>.*?)^(?P=mark)[ \t]*(?:\r?\n|\Z)", re.S | re.M
)
_ENTRY = re.compile(r"(?P<name>[A-Za-z][\w -]{0,40}?)[ \t]*[:=][ \t]*(?P<value>.*)")
# What a block says about the text itself; the rest says how a program shows it.
_SAID = ("author", "authors", "date", "updated", "lastmod", "version", "revision", "replaces",
         "supersedes", "status", "description", "summary", "tags", "keywords")  # fmt: skip


def without_metadata(text: str) -> tuple[str, dict[str, str]]:
    """Return a text without the block of metadata at its head (YAML or TOML), whose entries on the
    text are its first line, and these entries."""
    block = _BLOCK.match(text)
    if block is None:
        return text, {}
    found: dict[str, str] = {}
    name = ""
    for line in block["body"].splitlines():
        if (entry := _ENTRY.fullmatch(line.rstrip())) and not line[:1].isspace():
            name = entry["name"].lower()
            found[name] = entry["value"].strip(" \"'[]>|")
        elif name and (more := line.strip(" -\t\"'[],")):
            found[name] += (", " if found[name] else "") + more
        elif line.strip() and not found:
            return text, {}  # a line across the page, and a text
    if not found:
        return text, {}
    said = [f"{name}: {found[name]}" for name in _SAID if found.get(name)]
    return (" | ".join(said) + "\n\n" if said else "") + text[block.end() :], found


_COMMENT = re.compile(
    r"<!--.*?-->[ \t]*|^\[[^\]\n]*\]: *(?:#|<>) *[(\"'][^\n]*[)\"'][ \t]*$", re.S | re.M
)


def without_comments(text: str, tokens: Sequence[Token]) -> tuple[str, int]:
    """Return a text without comments that its reader does not see, and how many there were."""
    starts = [0, *(end.end() for end in LINE_END.finditer(text)), len(text)]
    code = [
        (starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)])
        for token in tokens
        if token.type in ("fence", "code_block") and token.map is not None
    ]
    count = 0

    def left(found: re.Match[str]) -> str:
        nonlocal count
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if line.count("`") % 2 or any(start <= found.start() < end for start, end in code):
            return found[0]
        count += 1
        return ""

    return _COMMENT.sub(left, text), count


def parse_markdown(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a text; its title is that of its metadata, else the first heading of level 1."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    decoded = without_picture_data(decode(content))
    text, said = without_metadata(decoded.text)
    text, comments = without_comments(text, parser.parse(text))
    text = with_whole_rows(text, parser.parse(text))
    text = with_named_rows(text, parser.parse(text), bounds)
    starts = [0, *(end.end() for end in LINE_END.finditer(text))]
    found = [
        (starts[opening.map[0]], opening.tag, inline.content.strip())
        for opening, inline in pairwise(parser.parse(text))
        if opening.type == "heading_open" and opening.map is not None
    ]
    title = said.get("title") or next((text for _, tag, text in found if tag == "h1" and text), "")
    warnings = (*decoded.warnings, *left_out_warnings({"hidden_text": comments}))
    marks = [heading(start, text) for start, _, text in found]
    return ParsedFile(text, title, marks, warnings, said)


def parse_text(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a plain text: only its charset is to be found."""
    decoded = without_picture_data(decode(content))
    return ParsedFile(decoded.text, warnings=decoded.warnings)
