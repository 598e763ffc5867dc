"""Cuts a text into chunks of at most `max_tokens` tokens. Knows no documents, vectors or storage.

    text     |-- heading -- paragraph -- paragraph --|-- heading -- ... --|-- ... --|
    spans     [0 ............................... e0)  [e0 .......... e1)   [e1 ... n)

A chunk is prefilled as a segment of its own, e.g. "{title}\n{text}\n" tokenised by itself, so the
limit holds for the rendered segment and not for the bare text. Spans never overlap: an overlap
would be prefilled and stored twice.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from retriever.chunking.boundaries import TextBoundaries
from retriever.chunking.token_counters import TokenCounter, TokenizerCounter
from retriever.errors import InvalidDocument

__all__ = ["ChunkSettings", "Render", "Span", "TokenCounter", "TokenizerCounter"]
__all__ += ["plain", "split"]

# Render(title, text) is the segment that is prefilled.
Render = Callable[[str, str], str]

# Raise it when the same parameters cut the same text at other places: revisions depend on it.
_ALGORITHM = 1


def plain(title: str, text: str) -> str:
    """The default rendering: the text alone."""
    return text


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of the text; `tokens` counts the rendered segment."""

    start: int
    end: int
    tokens: int


@dataclass(frozen=True)
class ChunkSettings:
    """How the documents of a corpus are chunked."""

    tokenizer: TokenCounter
    max_tokens: int = 512
    render: Render = plain

    @property
    def fingerprint(self) -> str:
        """Changes whenever chunks may come out differently, by tokens or by rendering."""
        samples = [self.render("{title}", "{text}"), self.render("", "{text}")]
        parts = [_ALGORITHM, self.max_tokens, self.tokenizer.revision, *samples]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def split(self, text: str, title: str = "") -> list[Span]:
        """`split` with these settings."""
        return split(
            text,
            tokenizer=self.tokenizer,
            max_tokens=self.max_tokens,
            render=self.render,
            title=title,
        )


def split(
    text: str,
    *,
    tokenizer: TokenCounter,
    max_tokens: int = 512,
    render: Render = plain,
    title: str = "",
) -> list[Span]:
    """Spans that cover `text` without gap or overlap; none if it holds only whitespace.

    Packs greedily. A chunk ends at the best border in the second half of what fits (markdown
    heading, blank line, sentence, line, whitespace), and between two characters where there is
    none: a better border further back would leave chunks nearly empty.

    Raises InvalidDocument if a single character does not fit beside the rendered title.
    """
    if not text.strip():
        return []
    count = _counter(tokenizer, render, title)
    budget = max_tokens - count("")
    if budget <= 0:
        raise InvalidDocument(
            f"the rendered title takes all of max_tokens={max_tokens}; shorten it or raise the "
            "chunk size"
        )
    # Tokens of the whole text only estimate those of a piece, which is then counted exactly.
    starts = sorted(start for start, _ in tokenizer.encode_offsets(text))
    borders = TextBoundaries(text)
    spans: list[Span] = []
    position = 0
    while position < len(text):
        span = _next_span(text, position, budget, max_tokens, starts, borders, count)
        spans.append(span)
        position = span.end
    return spans


def _next_span(
    text: str,
    position: int,
    budget: int,
    max_tokens: int,
    starts: list[int],
    borders: TextBoundaries,
    count: Callable[[str], int],
) -> Span:
    first = bisect_left(starts, position)
    while True:
        fits = first + budget
        high = starts[fits] if fits < len(starts) else len(text)
        high = max(high, position + 1)
        if high < len(text):
            half = starts[first + budget // 2]
            end = borders.best(max(half - 1, position), high)
        else:
            end = high
        tokens = count(text[position:end])
        if tokens <= max_tokens:
            return Span(position, end, tokens)
        # By itself the piece takes more tokens than it did within the text: take less of it.
        budget = min(budget, bisect_left(starts, end) - first) - (tokens - max_tokens)
        if budget <= 0:
            return _halved(text, position, end, max_tokens, count)


def _halved(
    text: str, position: int, end: int, max_tokens: int, count: Callable[[str], int]
) -> Span:
    """The last resort where the estimate is useless, as in a word that is one unknown token."""
    while end - position > 1:
        end = position + (end - position) // 2
        tokens = count(text[position:end])
        if tokens <= max_tokens:
            return Span(position, end, tokens)
    raise InvalidDocument(
        f"the character at {position} does not fit into max_tokens={max_tokens} beside the "
        "rendered title; raise the chunk size"
    )


def _counter(tokenizer: TokenCounter, render: Render, title: str) -> Callable[[str], int]:
    def count(piece: str) -> int:
        return len(tokenizer.encode_offsets(render(title, piece)))

    return count
