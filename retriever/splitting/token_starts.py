"""Where the tokens of a text start, found a part of the text at a time.

What a tokenizer notes of every token takes a hundred times the text's memory, gigabytes for a book,
and other threads wait while it is turned into Python's objects.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from typing import Protocol

WINDOW = 1 << 16
"""Characters that are made tokens at a time."""
# Before a line that does not begin with a blank: tokenizers begin a token there, too.
_LINE_BEGINS = re.compile(r"\n(?=\S)")


class TokenOffsets(Protocol):
    """Says where tokens are."""

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        """Character range (start, end) of each token of `text`, without special tokens."""
        ...


class TokenStarts:
    """Character positions where the tokens of a text start, in order."""

    def __init__(self, text: str, tokenizer: TokenOffsets) -> None:
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
        start = self._done
        self._done = self._window_end(start)
        offsets = self._tokenizer.encode_offsets(self._text[start : self._done])
        self._starts.extend(sorted(start + first for first, _ in offsets))

    def _window_end(self, start: int) -> int:
        end = start + WINDOW
        if end >= len(self._text):
            return len(self._text)
        found = [match.end() for match in _LINE_BEGINS.finditer(self._text, start, end)]
        return found[-1] if found else end
