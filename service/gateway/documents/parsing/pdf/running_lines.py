"""Lines that run along the top or bottom of many pages: kept where they first stand."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from service.gateway.documents.parsing.pdf.layout import Line

MIN_PAGES = 3  # that show a line before it counts as running
MAX_LINES = 3  # of a header, of a footer
MAX_PAGE_DIGITS = 3  # longer numbers are those of invoices and years
EDGE_GAP = 1.4  # between it and the text, in heights of a line
_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")
_DASHES = r"[-\u2013\u2014|/. ]*"
_BARE_NUMBER = re.compile(
    rf"{_DASHES}(page|seite|p\.)?{_DASHES}#([-\u2013\u2014|/. #]|of|von)*", re.I
)

Place = tuple[str, int]
"""The text with `#` for its numbers, and its height in steps of 4 points."""


def without_running_lines(pages: Sequence[list[Line]]) -> list[list[Line]]:
    """Return the pages' lines without headers and footers that stood on a page before."""
    edges = [_edges(lines) for lines in pages]
    sizes = [line.row.height for lines in pages for line in lines]
    usual = statistics.median(sizes) if sizes else 0.0
    shown: Counter[Place] = Counter()
    above_text: Counter[Place] = Counter()
    for lines, found in zip(pages, edges, strict=True):
        places = {_place(line) for line in found if line.row.height <= 1.2 * usual}
        shown.update(places)
        # On a page of nothing but such lines they are its text.
        if len(found) < len(lines):
            above_text.update(places)
    running = {
        place
        for place, count in shown.items()
        if count >= MIN_PAGES and (above_text[place] > 1 or _BARE_NUMBER.fullmatch(place[0]))
    }
    seen: dict[str, tuple[int, list[str]]] = {}  # text → the last page that showed it, its numbers
    out: list[list[Line]] = []
    for page, (lines, found) in enumerate(zip(pages, edges, strict=True)):
        drop: set[int] = set()
        for line in found:
            place = _place(line)
            if any((place[0], place[1] + step) in running for step in (-1, 0, 1)):
                numbers = _NUMBER.findall(line.text)
                before = seen.get(place[0])
                bare = _BARE_NUMBER.fullmatch(place[0])
                if bare or (before is not None and _go_on(*before, page, numbers)):
                    drop.add(id(line))
                seen[place[0]] = page, numbers
        out.append([line for line in lines if id(line) not in drop])
    return out


def _place(line: Line) -> Place:
    return _NUMBER.sub("#", " ".join(line.text.split())), round(line.row.middle / 4)


def _go_on(before: int, numbers: Sequence[str], page: int, now: Sequence[str]) -> bool:
    """Return whether a line's numbers are those of an earlier page, or counted with the pages."""
    for old, new in zip(numbers, now, strict=True):
        if old == new or not new.isdecimal():  # Roman ones are of pages
            continue
        if len(new) > MAX_PAGE_DIGITS or not old.isdecimal():
            return False
        if int(new) - int(old) != page - before:
            return False
    return True


def _edges(lines: list[Line]) -> list[Line]:
    """Return the lines at a page's top and bottom that may run, from the outermost inwards."""
    ordered = sorted(lines, key=lambda line: -line.row.middle)
    found = {id(line): line for order in (ordered, ordered[::-1]) for line in _edge(order)}
    return list(found.values())


def _edge(ordered: list[Line]) -> Iterator[Line]:
    block = ordered[: MAX_LINES + 1]
    apart = len(ordered)
    for index, (line, other) in enumerate(pairwise(block), 1):
        distance = abs(line.row.middle - other.row.middle)
        if distance > EDGE_GAP * max(line.row.height, other.row.height):
            apart = index
            break
    if apart <= MAX_LINES:
        yield from block[:apart]
    elif ordered:
        text = _place(ordered[0])[0]
        if "#" not in text or _BARE_NUMBER.fullmatch(text):
            yield ordered[0]
