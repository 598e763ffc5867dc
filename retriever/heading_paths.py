"""Which headings stand above a chunk: what its section is about, which its text may not say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from retriever.chunking import ChunkSpan
from retriever.documents import Document

SEPARATOR = " > "
MAX_PATH_CHARS = 200  # the nearest headings; an embedder reads some hundred words of a chunk
_LEVEL = re.compile("#{1,6}(?= )")


def heading_paths(document: Document, spans: Sequence[ChunkSpan]) -> list[str]:
    """Return the headings above each chunk, outermost first: "Parts > Screws"; "" if none are.

    Headings inside a chunk, and what is the document's title, are left out, because the chunk says
    them by itself. A heading's level is told by Markdown's signs, which most formats are stored
    with; where a text has none, a chunk is below its last heading only.

    Args:
        document: With marks.
        spans: Its chunks, in their order.
    """
    marks = [mark for mark in document.marks if mark.kind == "heading"]
    paths = []
    above: list[tuple[int, str]] = []  # (level, label) of the headings that hold
    passed = 0
    for span in spans:
        while passed < len(marks) and marks[passed].start < span.start:
            above = _below(above, _level(document.text, marks[passed].start))
            above.append((_level(document.text, marks[passed].start), marks[passed].label))
            passed += 1
        inside = above
        if passed < len(marks) and marks[passed].start == span.start:
            inside = _below(above, _level(document.text, span.start))
        paths.append(_joined([label for _, label in inside if label != document.title]))
    return paths


def _level(text: str, start: int) -> int:
    found = _LEVEL.match(text, start)
    return len(found[0]) if found else 1


def _below(above: list[tuple[int, str]], level: int) -> list[tuple[int, str]]:
    """Return the headings that a heading of this level stands below."""
    return [*takewhile(lambda one: one[0] < level, above)]


def _joined(labels: list[str]) -> str:
    while len(labels) > 1 and len(SEPARATOR.join(labels)) > MAX_PATH_CHARS:
        labels = labels[1:]
    return SEPARATOR.join(labels)[:MAX_PATH_CHARS]
