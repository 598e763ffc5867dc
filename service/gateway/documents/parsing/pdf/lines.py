"""Lines to paragraphs' text: words that were divided at the end of a line are put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from service.gateway.documents.parsing.pdf.layout import IS_CJK, Line
from service.gateway.documents.parsing.pdf.words import HYPHEN

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
    return [_clean("\n".join(out)) for out in texts]


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


def _clean(text: str) -> str:
    """Write a hyphen where a line's end kept PDFium's sign for one, and short leaders."""
    return _LEADER.sub(" … ", text.replace(HYPHEN, "-")).strip("\n")
