"""Where a text may be split, by preference (heading, blank line, sentence, …), and where its tokens
start.

All patterns take time linear in the length of the text: every quantifier is possessive, or its run
can only be entered at its first character.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from typing import Protocol

# A boundary is the position where the next piece starts. The best kind comes first. Line ends rank
# between sentences and whitespace, so that lists, tables and code are not split inside a line.
_HEADING = re.compile(r"(?:\A|(?<=[\r\n]))(?=#{1,6}[ \t])")
_NUMBER = re.compile(r"^[ \t]*\d{1,3}\.\s+\Z", re.M)  # of an item, which begins with it
_BLANK_LINE = re.compile(r"\n(?:[ \t\r\f\v]*+\n)++")
_SENTENCE = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]++[\"'\u201d\u2019)\]]*+\s++"
    r"|(?<![\u3002\uff01\uff1f\uff61])[\u3002\uff01\uff1f\uff61]++"
    r"[\u300d\u300f\u201d\u2019\uff09)]*+\s*+"
)
_LINE = re.compile(r"\r?+\n|\r")
_WHITESPACE = re.compile(r"\s++")
_KINDS = (_HEADING, _BLANK_LINE, _SENTENCE, _LINE, _WHITESPACE)
# A row of a table: cells side by side. A sentence that ends in a cell is no place to cut.
_CELL = re.compile(r"(?<=\S) \| (?=\S)")
_ROW = re.compile(r"^[^\r\n]*\S \| \S[^\r\n]*$", re.M)

# Flag emoji are pairs of characters, counted from the start of their run. The look-back is bounded,
# otherwise a text of nothing but flags would take quadratic time.
_LONGEST_FLAG_RUN = 256
_ZERO_WIDTH_JOINER = "\u200d"


class TextBoundaries:
    """The boundaries of one text, found once and used for many splits."""

    def __init__(self, text: str) -> None:
        self._text = text
        # Numbers of arrays, since Python's own take five times the memory, beside a book a hundred
        # megabytes, and leave holes behind.
        self._row_starts, self._row_ends = array("q"), array("q")
        for match in _ROW.finditer(text):
            self._row_starts.append(match.start())
            self._row_ends.append(match.end())
        heading, blank, sentence, line, white = (
            array("q", (match.end() for match in kind.finditer(text))) for kind in _KINDS
        )
        outside = (
            position
            for position in sentence
            if self.row_around(position) is None
            and not _NUMBER.search(text, max(position - 8, 0), position)
        )
        cells = array("q", (match.end() for match in _CELL.finditer(text)))
        self._in_row = (cells, sentence, white)
        self._kinds = (heading, blank, array("q", outside), line, sentence, white)

    def row_around(self, position: int) -> tuple[int, int] | None:
        """The table's row (start, end) that a cut at `position` would divide; None: none."""
        index = bisect_right(self._row_starts, position) - 1
        if index < 0:
            return None
        start, end = self._row_starts[index], self._row_ends[index]
        return (start, end) if start < position < end else None

    def best(self, low: int, high: int, *, in_row: bool = False) -> int:
        """The last boundary of the best kind in (low, high]; within a row (`in_row`) between cells,
        sentences or words."""
        for positions in self._in_row if in_row else self._kinds:
            index = bisect_right(positions, high) - 1
            if index >= 0 and positions[index] > low:
                return positions[index]
        cut = high
        while cut > low and is_inside_character(self._text, cut):
            cut -= 1
        return cut if cut > low else high


def is_inside_character(text: str, cut: int) -> bool:
    """Whether a reader sees the characters around `cut` as one (Unicode Standard Annex #29)."""
    if not 0 < cut < len(text):
        return False
    before, after = text[cut - 1], text[cut]
    if before == "\r" and after == "\n":
        return True
    if after < "\u0300":
        return False
    if _ZERO_WIDTH_JOINER in (before, after) or unicodedata.category(after) in ("Mn", "Mc", "Me"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True  # skin tones; tags of regional flags
    if _is_flag_half(before) and _is_flag_half(after):
        first = cut - 1
        while first > max(0, cut - _LONGEST_FLAG_RUN) and _is_flag_half(text[first - 1]):
            first -= 1
        return (cut - first) % 2 == 1
    return False


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


WINDOW = 1 << 16  # characters that are made tokens at a time
# Before a line that does not begin with a blank: tokenizers begin a token there, too.
_LINE_BEGINS = re.compile(r"\n(?=\S)")


class TokenCounter(Protocol):
    """Splits text into tokens the way the serving model does, without special tokens."""

    @property
    def revision(self) -> str:
        """Changes whenever the same text may give other tokens."""
        ...

    def count_tokens(self, text: str) -> int: ...

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        """Character range (start, end) of each token of `text`."""
        ...


class TokenStarts:
    """Where the tokens of a text start, found a part of the text at a time, since what a tokenizer
    notes of every token takes a hundred times the text's memory."""

    def __init__(self, text: str, tokenizer: TokenCounter) -> None:
        self._text, self._tokenizer = text, tokenizer
        self._starts, self._done = array("q"), 0  # those of the first so many characters

    def before(self, position: int) -> int:
        """How many tokens start before a position."""
        while self._done < min(position, len(self._text)):
            self._go_on()
        return bisect_left(self._starts, position)

    def at(self, index: int) -> int:
        """Where a token starts; the text's end if it has fewer tokens."""
        while len(self._starts) <= index and self._done < len(self._text):
            self._go_on()
        return self._starts[index] if index < len(self._starts) else len(self._text)

    def _go_on(self) -> None:
        start, end = self._done, self._done + WINDOW
        if end < len(self._text):
            found = [match.end() for match in _LINE_BEGINS.finditer(self._text, start, end)]
            end = found[-1] if found else end
        self._done = min(end, len(self._text))
        offsets = self._tokenizer.encode_offsets(self._text[start : self._done])
        self._starts.extend(sorted(start + first for first, _ in offsets))
