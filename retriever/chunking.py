"""Splits a text into chunks of at most `max_tokens` tokens.

    text     |-- heading -- paragraph -- paragraph --|-- heading -- ... --|-- ... --|
    spans     [0 ............................... e0)  [e0 .......... e1)   [e1 ... n)

A chunk is prefilled as a segment of its own, e.g. "{title}\n{text}\n" tokenised by itself. So the
limit applies to the rendered segment, not to the bare text. Spans never overlap, because an overlap
would be prefilled and stored twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kvstitch.retriever.boundaries import TextBoundaries, TokenCounter, TokenStarts
from kvstitch.retriever.errors import InvalidDocument, SplitStopped

# Render(title, text) gives the segment that is prefilled.
Render = Callable[[str, str], str]

# Raise this when the same parameters split the same text differently: revisions depend on it.
_ALGORITHM = 2

TITLE_SHARE = 4  # a title takes at most this part of a chunk, because it stands in each


def plain(title: str, text: str) -> str:
    """The default rendering: the text alone."""
    return text


@dataclass(frozen=True)
class ChunkSpan:
    """One chunk's characters, `end` excluded, and the tokens of its rendered segment."""

    start: int
    end: int
    tokens: int


@dataclass(frozen=True)
class ChunkSettings:
    """How the documents of a corpus are split: `render` makes of title and text the segment that is
    prefilled."""

    tokenizer: TokenCounter
    max_tokens: int = 512
    render: Render = plain

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same document may give other chunks."""
        samples = [self.render("{title}", "{text}"), self.render("", "{text}")]
        parts = [_ALGORITHM, self.max_tokens, self.tokenizer.revision, *samples]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def short_title(self, title: str) -> str:
        """Return a title, cut between words to a fourth of a chunk's tokens if it is longer."""

        def fits(text: str) -> bool:
            return self._count("", text) - self._count("", "") <= self.max_tokens // TITLE_SHARE

        if fits(title):
            return title
        words = title.split(" ")
        low, high = 0, len(words)  # words that fit, words that do not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(" ".join(words[:middle]) + "…") else (low, middle)
        short = " ".join(words[:low])
        while not short or not fits(short + "…"):
            # One word that is too long, or a language that writes none.
            short = (short or title)[: max(len(short or title) // 2, 1)]
            if len(short) == 1:
                break
        return short.rstrip(" ,;:-–—") + "…"

    def split(
        self, text: str, title: str = "", stopped: Callable[[], bool] | None = None
    ) -> list[ChunkSpan]:
        """Split `text` into spans that cover it without gap or overlap; into none if it is blank.

        Each chunk takes as much text as fits. It ends at the best boundary in the second half of
        that: markdown heading, blank line, sentence, line, whitespace; where there is none, between
        two characters. A row of a table that fits into a chunk is never divided.

        Raises SplitStopped, or InvalidDocument if not even a character fits beside the title.
        """
        if not text.strip():
            return []
        budget = self.max_tokens - self._count(title, "")
        if budget <= 0:
            raise InvalidDocument(
                f"the rendered title takes all of max_tokens={self.max_tokens}; shorten it or "
                "raise the chunk size"
            )
        starts = TokenStarts(text, self.tokenizer)
        splitter = _Splitter(text, starts, self, title)
        spans: list[ChunkSpan] = []
        position = 0
        while position < len(text):
            if stopped is not None and stopped():
                raise SplitStopped("nobody waits for the chunks")
            spans.append(splitter.next_span(position, budget))
            position = spans[-1].end
        return spans

    def _count(self, title: str, text: str) -> int:
        """Return the tokens of a rendered segment."""
        return self.tokenizer.count_tokens(self.render(title, text))


@dataclass(frozen=True)
class _Splitter:
    """Finds one span after the other in a text."""

    text: str
    starts: TokenStarts
    settings: ChunkSettings
    title: str

    @cached_property
    def boundaries(self) -> TextBoundaries:
        return TextBoundaries(self.text)

    def next_span(self, position: int, budget: int) -> ChunkSpan:
        """The span that starts at `position`; `budget` is the estimate of tokens that fit."""
        starts, text, most = self.starts, self.text, self.settings.max_tokens
        first = starts.before(position)
        while True:
            high = max(starts.at(first + budget), position + 1)
            if high < len(text):
                half = starts.at(first + budget // 2)
                end = self.boundaries.best(max(half - 1, position), high)
                row = self.boundaries.row_around(end)
                if row is not None and row[0] > position and self._count(*row) <= most:
                    end = row[0]
            else:
                end = high
            tokens = self._count(position, end)
            if tokens <= most:
                return ChunkSpan(position, end, tokens)
            # Alone, the piece has more tokens than it had within the text: take less of it.
            budget = min(budget, starts.before(end) - first) - (tokens - most)
            if budget <= 0:
                return self._halve(position, end)

    def _count(self, start: int, end: int) -> int:
        rendered = self.settings.render(self.title, self.text[start:end])
        return self.settings.tokenizer.count_tokens(rendered)

    def _halve(self, position: int, end: int) -> ChunkSpan:
        """The last resort if the estimate is useless, e.g. in a word that is one unknown token."""
        while end - position > 1:
            end = position + (end - position) // 2
            tokens = self._count(position, end)
            if tokens <= self.settings.max_tokens:
                return ChunkSpan(position, end, tokens)
        raise InvalidDocument(
            f"the character at {position} does not fit into "
            f"max_tokens={self.settings.max_tokens} beside the rendered title; raise the chunk size"
        )
