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
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kvstitch.retriever.boundaries import TextBoundaries, TokenCounter, TokenStarts
from kvstitch.retriever.errors import InvalidDocument, SplitStopped
from kvstitch.retriever.outline import Outline

# Render(title, text) gives the segment that is prefilled.
Render = Callable[[str, str], str]

# Raise this when the same parameters split the same text differently: revisions depend on it.
_ALGORITHM = 4

LEAD_SHARE = 3  # so much of a chunk at most repeats what stands before it
TITLE_SHARE = 4  # a title takes at most this part of a chunk, because it stands in each


def plain(title: str, text: str) -> str:
    """The default rendering: the text alone."""
    return text


def middle_cut(title: str, fits: Callable[[str], bool]) -> str:
    """Return beginning and end of a title that is too long, cut between words where it has some:
    what tells versions apart stands at the end. The longest that fits, or one character."""
    title = title.strip()
    sides = [re.findall(r"\S+\s*", title), list(title)]
    for parts in sides:
        low, high = 0, len(parts)  # parts that fit, parts that do not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(_without_middle(parts, middle)) else (low, middle)
        if low > 1 or parts is sides[-1]:
            break
    return _without_middle(parts, max(low, 1))


def _without_middle(parts: list[str], kept: int) -> str:
    end = (kept + 1) // 3
    first = "".join(parts[: kept - end]).rstrip(" ,;:-–—")
    return f"{first} … {''.join(parts[-end:])}" if end else f"{first}…"


@dataclass(frozen=True)
class ChunkSpan:
    """One chunk's characters, `end` excluded, the tokens of its rendered segment, and what its text
    repeats of what stands before it (outline.py)."""

    start: int
    end: int
    tokens: int
    lead: str = ""

    def text(self, document: str) -> str:
        return self.lead + document[self.start : self.end]


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
        """Return a title; of one with more tokens than a fourth of a chunk beginning and end."""

        def fits(text: str) -> bool:
            return self._count("", text) - self._count("", "") <= self.max_tokens // TITLE_SHARE

        return title if fits(title) else middle_cut(title, fits)

    def split(
        self, text: str, title: str = "", stopped: Callable[[], bool] | None = None
    ) -> list[ChunkSpan]:
        """Split `text` into spans that cover it without gap or overlap; into none if it is blank.

        Each chunk takes as much text as fits. It ends at the best boundary in the second half of
        that: markdown heading, blank line, sentence, line, whitespace; where there is none, between
        two characters. A row of a table, or a part of JSON or YAML, that fits into a chunk is never
        divided; one that does not shares no chunk with another.

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

    @cached_property
    def outline(self) -> Outline:
        return Outline(self.text, self.boundaries)

    def next_span(self, position: int, budget: int) -> ChunkSpan:
        """The span that starts at `position`; `budget` is the estimate of tokens that fit."""
        starts, text, most = self.starts, self.text, self.settings.max_tokens
        lead = self._lead(position)
        if lead:
            budget = max(budget - self.settings.tokenizer.count_tokens(lead), 1)
        row = self.boundaries.row_around(position)  # that has begun in another chunk
        first = starts.before(position)
        while True:
            high = max(starts.at(first + budget), position + 1)
            if row is not None and row[1] < high:
                end = min(row[1] + 1, len(text))
            elif high < len(text):
                end = self._cut(position, starts.at(first + budget // 2), high)
            else:
                end = high
            tokens = self._count(position, end, lead)
            if tokens <= most:
                return ChunkSpan(position, end, tokens, lead)
            # Alone, the piece has more tokens than it had within the text: take less of it.
            budget = min(budget, starts.before(end) - first) - (tokens - most)
            if budget <= 0:
                return self._halve(position, end)

    def _cut(self, position: int, half: int, high: int) -> int:
        if self.outline.is_data and (end := self.outline.cut(position, half, high, self._fits)):
            return end
        end = self.boundaries.best(max(half - 1, position), high)
        row = self.boundaries.row_around(end)
        if row is None:
            return end
        if row[0] > position:
            return row[0]
        return self.boundaries.best(max(half - 1, position), high, in_row=True)

    def _fits(self, start: int, end: int) -> bool:
        # So much text has more tokens than any chunk: they need not be counted.
        most = self.settings.max_tokens
        return end - start < 32 * most and self._count(start, end, self._lead(start)) <= most

    def _lead(self, position: int) -> str:
        """What a chunk repeats, of at most a part of its tokens."""
        most = self.settings.max_tokens // LEAD_SHARE
        count = self.settings.tokenizer.count_tokens
        return self.outline.lead(position, lambda lead: count(lead) <= most)

    def _count(self, start: int, end: int, lead: str = "") -> int:
        rendered = self.settings.render(self.title, lead + self.text[start:end])
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
