"""What an embedder is. Knows no model, chunk or index, and imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Thread-safe between start() and close(). `revision` and `dim` may need start().

    `revision` is a hash of all that decides a vector (weights, tokenizer, pooling): two embedders
    with the same name and revision give the same vectors.
    """

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def start(self) -> None:
        """Load what embed() needs. Calling it again changes nothing."""
        ...

    def close(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """[len(texts), dim] float32, each row of length 1. Raises EmbedderError."""
        ...


@dataclass(frozen=True)
class EmbeddingSpace:
    """Vectors are comparable only within one space."""

    name: str
    revision: str
    dim: int

    def __str__(self) -> str:
        return f"{self.name}@{self.revision[:12]} ({self.dim} dimensions)"


def space_of(embedder: Embedder) -> EmbeddingSpace:
    """The space of a started embedder."""
    return EmbeddingSpace(embedder.name, embedder.revision, embedder.dim)
