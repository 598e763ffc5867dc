"""Counting tokens for the chunker. Knows no model, prompt or document.

The count must be that of the *serving* tokenizer, so the tokenizer is passed in.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenCounter(Protocol):
    """`revision` changes whenever the same text may come out as other tokens."""

    @property
    def revision(self) -> str: ...

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        """(start, end) in characters of each token of `text`, without special tokens."""
        ...


class TokenizerCounter:
    """Adapter over `tokenizers.Tokenizer`, through a copy set to count all of a user's text.

    Truncation and padding are off: many tokenizer.json files carry a truncation that would hide
    all but the first tokens. The name of a special token in a document is plain text, not one
    token. A copy, because setting this in place would change the owner's object.
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
        """Read a tokenizer.json."""
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
