"""Counts tokens for the chunker.

The chunk size counts tokens of the *serving* model, so its tokenizer is passed in.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenCounter(Protocol):
    """Splits text into tokens the way the serving model does."""

    @property
    def revision(self) -> str:
        """Changes whenever the same text may give other tokens."""
        ...

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        """Character range (start, end) of each token of `text`, without special tokens."""
        ...


class TokenizerCounter:
    """Counts tokens with a copy of a `tokenizers.Tokenizer`.

    The copy has truncation and padding off, because many tokenizer.json files set a truncation that
    would hide all but the first tokens. It treats the name of a special token in a document as
    plain text. It is a copy so that the caller's tokenizer keeps its settings.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._revision = hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()

    @classmethod
    def from_file(cls, path: str | Path) -> TokenizerCounter:
        """Load a tokenizer.json file."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(path)))

    @property
    def revision(self) -> str:
        return self._revision

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        offsets: list[tuple[int, int]] = self._tokenizer.encode(
            text, add_special_tokens=False
        ).offsets
        return offsets
