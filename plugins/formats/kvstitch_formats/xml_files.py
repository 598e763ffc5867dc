"""XML of any kind: each element that holds values is a line of these, by their names; what mixes
text and elements is a paragraph. Feeds and DocBook are read so, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.markup import html
from kvstitch.service.gateway.documents.parsing.office.drawings import xml_of
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Bounds,
    ParsedFile,
    TextBuilder,
    one_line,
)
from kvstitch.service.gateway.documents.parsing.tables.rows import SEPARATOR
from kvstitch_formats.open_document_text import name_of

_ESCAPED = re.compile(r"<(?:p|br|div|a|ul|b|i|img|span|strong|em)\b[^>]*>", re.I)
_TITLES = ("title", "name", "head", "heading", "h1", "h2", "h3")


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a file; its title is that of its first element `title`."""
    if re.search(rb"<!ENTITY", content[:4096]):
        raise InvalidRequest("it declares entities: save it anew without them")
    root = xml_of(content)
    out = TextBuilder(bounds)
    stack: list[tuple[Any, int]] = [(root, 1)]
    while stack:
        element, depth = stack.pop()
        children = [child for child in element if name_of(child)]
        simple = [child for child in children if not any(map(name_of, child))]
        if _is_mixed(element, children):
            out.block(_text("".join(element.itertext()), bounds))
        elif len(simple) == len(children):
            out.line(SEPARATOR.join(_values(element, simple, bounds)))
        else:
            title = next((c for c in simple if name_of(c).lower() in _TITLES), None)
            if title is not None:
                out.heading(depth, "".join(title.itertext()))
            values = _values(element, [c for c in simple if c is not title], bounds)
            out.block(SEPARATOR.join(values))
            inner = [child for child in children if child not in simple]
            stack += [(child, min(depth + (title is not None), 6)) for child in reversed(inner)]
    found = next((e for e in root.iter("{*}title") if one_line("".join(e.itertext()))), None)
    return out.finish("" if found is None else "".join(found.itertext()))


def _is_mixed(element: Any, children: list[Any]) -> bool:
    texts = [element.text, *(child.tail for child in children)]
    return bool(children) and any(text and text.strip() for text in texts)


def _values(element: Any, children: list[Any], bounds: Bounds) -> Iterator[str]:
    """Yield "name: value" of attributes and children, else the element's own."""
    own = "" if any(map(name_of, element)) else _text("".join(element.itertext()), bounds)
    of = name_of(element)
    yield from (
        f"{k.rpartition('}')[2]}: {one_line(v)}" for k, v in element.attrib.items() if v.strip()
    )
    if own:
        yield f"{of}: {own}"
    for child in children:
        more = ", ".join(one_line(v) for k, v in child.attrib.items() if v.strip())
        if text := _text("".join(child.itertext()), bounds) or more:
            beside = f" ({more})" if more and text != more else ""
            yield f"{name_of(child)}: {text}{beside}"


def _text(text: str, bounds: Bounds) -> str:
    """Return a text on one line; one that is a page in a page is read as one."""
    if _ESCAPED.search(text):
        text = html.parse(text.encode(), bounds).text
    return one_line(text)
