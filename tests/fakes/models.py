"""Fake models: deterministic, and they need no files and no network."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from tokenizers import Tokenizer

from kvstitch.retriever.embedders import CountedVectors, Prompts, Vectors


class HashingEmbedder:
    """Deterministic across processes and machines; needs no files and no `start`."""

    name = "hashing"
    revision = "crc32-1"
    prompts = Prompts()

    def __init__(self, dim: int = 256) -> None:
        self.dim = dim

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        words = [re.findall(r"\w+", text.lower()) for text in texts]
        for row, text in enumerate(texts):
            # A text without words counts as one word, so that no vector has length 0.
            for word in words[row] or [text]:
                vectors[row, crc32(word.encode()) % self.dim] += 1.0
        norms: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / norms, sum(map(len, words))


class OverlapReranker:
    """Deterministic; needs no model and no network."""

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        wanted = _words(query)
        return [len(wanted & _words(text)) / max(1, len(wanted)) for text in texts]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


class WordCounter:
    """Counts each run of word characters, and each other visible character, as one token."""

    revision = "words-1"

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]

    def count_tokens(self, text: str) -> int:
        return len(self.encode_offsets(text))


class TokenizerCounter:
    """Counts tokens with a copy of a `tokenizers.Tokenizer`.

    The copy has truncation and padding off, because many tokenizer.json files set a truncation that
    would hide all but the first tokens. It treats the name of a special token in a document as
    plain text. It is a copy so that the caller's tokenizer keeps its settings.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._revision = hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()

    @classmethod
    def from_file(cls, path: str | Path) -> TokenizerCounter:
        """Load a tokenizer.json file."""
        return cls(Tokenizer.from_file(str(path)))

    @property
    def revision(self) -> str:
        return self._revision

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        offsets: list[tuple[int, int]] = self._tokenizer.encode(
            text, add_special_tokens=False
        ).offsets
        return offsets

    def count_tokens(self, text: str) -> int:
        return len(self.encode_offsets(text))
