"""Which headings stand above a chunk: what its section is about, which its text may not say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from retriever.documents import Document, Mark
from retriever.splitting.chunking import ChunkSpan

SEPARATOR = " > "
MAX_PATH_CHARS = 200  # the nearest headings; an embedder reads some hundred words of a chunk
_SIGNS = re.compile("(?:#{1,6}|={1,6})(?= )")
_UNDERLINE = re.compile(r"[^\n]*\n([!-/:-@\[-`{-~])\1*\s*$", re.M)


def heading_paths(document: Document, spans: Sequence[ChunkSpan]) -> list[str]:
    """Return the headings above each chunk, outermost first: "Parts > Screws"; "" if none are.

    Headings inside a chunk, and the document's title, are left out: the chunk says them by itself.
    A level is told by the signs before a heading (Markdown, AsciiDoc), else by the line below it
    (reStructuredText); without either a chunk is below its last heading only.
    """
    marks = [mark for mark in document.marks if mark.kind == "heading"]
    levels = _levels(document.text, marks)
    paths = []
    above: list[tuple[int, str]] = []  # (level, label) of the headings that hold
    passed = 0
    for span in spans:
        while passed < len(marks) and marks[passed].start < span.start:
            above = _below(above, levels[passed])
            above.append((levels[passed], marks[passed].label))
            passed += 1
        inside = above
        if passed < len(marks) and marks[passed].start == span.start:
            inside = _below(above, levels[passed])
        paths.append(_joined([label for _, label in inside if label != document.title]))
    return paths


def _levels(text: str, marks: Sequence[Mark]) -> list[int]:
    """Return the level of each heading, 1 the outermost."""
    signs = [_SIGNS.match(text, mark.start) for mark in marks]
    styles = ["=", "-"] if any(signs) else []
    levels = []
    for mark, sign in zip(marks, signs, strict=True):
        if sign:
            levels.append(len(sign[0]))
        elif line := _UNDERLINE.match(text, mark.start):
            above = text.rfind("\n", 0, max(0, mark.start - 1)) + 1
            overlined = mark.start and text[above : mark.start].strip().strip(line[1]) == ""
            style = line[1] + ("^" if overlined and text[above : mark.start].strip() else "")
            if style not in styles:
                styles.append(style)
            levels.append(styles.index(style) + 1)
        else:
            levels.append(1)
    return levels


def _below(above: list[tuple[int, str]], level: int) -> list[tuple[int, str]]:
    """Return the headings that a heading of this level stands below."""
    return [*takewhile(lambda one: one[0] < level, above)]


def _joined(labels: list[str]) -> str:
    while len(labels) > 1 and len(SEPARATOR.join(labels)) > MAX_PATH_CHARS:
        labels = labels[1:]
    return SEPARATOR.join(labels)[:MAX_PATH_CHARS]
