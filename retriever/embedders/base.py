"""The protocol of embedders, and what all users of tokenizers need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Vectors = npt.NDArray[np.float32]
CountedVectors = tuple[Vectors, int]
"""Vectors, and how many tokens the model read for them; 0 where an endpoint does not say."""


class Embedder(Protocol):
    """Turns texts into vectors; thread-safe between `start` and `close`."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> str:
        """Hash of everything that decides a vector. May need `start`."""
        ...

    @property
    def dim(self) -> int:
        """Dimensions of a vector. May need `start`."""
        ...

    def start(self) -> None:
        """Load what `embed` needs. Calling it again changes nothing."""
        ...

    def close(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 `[len(texts), dim]`, each row of length 1; raises EmbedderError."""
        ...

    def embed_counted(self, texts: Sequence[str]) -> CountedVectors:
        """Embed texts, and count the tokens that this took. Raises as `embed`."""
        ...


@dataclass(frozen=True)
class EmbeddingSpace:
    """The identity of an embedder; vectors are comparable only within one space."""

    name: str
    revision: str
    dim: int

    def __str__(self) -> str:
        return f"{self.name}@{self.revision[:12]} ({self.dim} dimensions)"


def space_of(embedder: Embedder) -> EmbeddingSpace:
    """The space of a started embedder."""
    return EmbeddingSpace(embedder.name, embedder.revision, embedder.dim)


def keep_no_words(tokenizer: Tokenizer) -> None:
    """Have a tokenizer keep no words that it met: of a hostile document they take 80 MB a
    thread."""
    if hasattr(tokenizer.model, "_resize_cache"):
        tokenizer.model._resize_cache(0)
