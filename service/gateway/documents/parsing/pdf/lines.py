"""Lines to paragraphs' text: words that were divided at the end of a line are put together, and
lines that stand on every page are left out."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from kvstitch.service.gateway.documents.parsing.pdf.layout import IS_CJK, Line
from kvstitch.service.gateway.documents.parsing.pdf.words import HYPHEN

_DIVIDED = re.compile(rf"((?:\w+[-\u2010])*\w+)([-\u00ad\u2010{HYPHEN}])$")
_ENGLISH_COMPOUND = re.compile(r"[a-z]+(?:-[a-z]+)+")
_START = re.compile(r"\w+")
_COMPOUND = re.compile(r"\w+(?:[-\u2010]\w+)*")
_LEADER = re.compile(r"(?:[ \t]*\.){5,}[ \t]*")  # dots of a table of contents
# Before these a hyphen stands for the rest of a word: "Vor- und Nachteile", "two- or threefold".
_JOINING = re.compile("and|or|to|und|oder|bis|sowie|bzw|et|ou|y|o|e|en|of|og|och", re.IGNORECASE)


class Vocabulary:
    """Words that stand somewhere in a document undivided."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._words: set[str] = set()
        for line in lines:
            self._words.update(word.lower() for word in _COMPOUND.findall(line))

    def joined(self, start: str, hyphen: str, end: str) -> str:
        """Return the word that a line's end and the next one's start make."""
        if hyphen == "\u00ad":
            return start + end
        whole, compound = start + end, f"{start}-{end}"
        if not end[0].islower() or start[-1].isdigit():
            return compound  # Part-number, AB-12, 5-10: the hyphen is part of it
        if compound.lower() in self._words and whole.lower() not in self._words:
            return compound
        # state-of-the-art, but E-Mail-Adresse: what German joins begins with capitals.
        return compound if _ENGLISH_COMPOUND.fullmatch(start) else whole


def paragraphs(pages: Sequence[list[Line]], vocabulary: Vocabulary) -> list[str]:
    """Return the text of each page, one line per line, and a blank one between paragraphs."""
    texts: list[list[str]] = [[] for _ in pages]
    last: list[str] | None = None  # the page of the line before
    full = False
    for lines, out in zip(pages, texts, strict=True):
        for line in lines:
            text = line.text
            if last and last[-1]:
                text = _rest(last, text, full, vocabulary)
            if text and line.gap and out and out[-1]:
                out.append("")
            if text:
                out.append(text)
                last = out
            full = line.full
    # A line's end may have kept PDFium's sign for a hyphen; leaders get short.
    whole = ("\n".join(out).replace(HYPHEN, "-") for out in texts)
    return [_LEADER.sub(" … ", text).strip("\n") for text in whole]


def _rest(last: list[str], text: str, full: bool, vocabulary: Vocabulary) -> str:
    """Move a line's start to the line before if they are one word; returns what is left."""
    before = last[-1]
    divided, start = _DIVIDED.search(before), _START.match(text)
    if divided is not None and start is not None and not _JOINING.fullmatch(start[0]):
        end = start[0]
        # The rest goes on to the next blank, with its punctuation.
        word, _, others = text.partition(" ")
        joined = vocabulary.joined(divided[1], divided[2], end) + word[len(end) :]
        last[-1] = before[: divided.start()] + joined
        return others.lstrip()
    if full and text and IS_CJK.match(before[-1]) and IS_CJK.match(text[0]):
        last[-1] = before + text
        return ""
    return text


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
