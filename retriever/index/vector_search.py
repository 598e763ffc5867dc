"""What the retriever asks of an index of vectors: FAISS in this process, or pgvector."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.index.index_files import Manifest
from retriever.index.inverted_lists import Stopped
from retriever.scope import DEFAULT_SCOPE, Scope


class VectorSearch(Protocol):
    """Vectors of all scopes; thread-safe. It is empty until `reset` or `load`."""

    def __len__(self) -> int: ...

    def count(self, scope: Scope = DEFAULT_SCOPE) -> int:
        """Number of vectors of a scope."""

    def reset(self, dim: int) -> None:
        """Begin anew with vectors of `dim` dimensions; what is right already may stay."""

    def add(self, ids: Sequence[int], vectors: Vectors, *, scope: Scope = DEFAULT_SCOPE) -> None:
        """Add vectors `[len(ids), dim]`."""

    def complete(self) -> None:
        """All vectors have been added after `reset`: make what finds them quickly."""

    def remove(self, ids: Collection[int], *, scope: Scope = DEFAULT_SCOPE) -> int:
        """Remove vectors of a scope; unknown ids are ignored. Returns how many were removed."""

    def replace(
        self,
        removed: Collection[int],
        ids: Sequence[int],
        vectors: Vectors,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> None:
        """Remove and add in one step.

        Raises:
            InvalidVectors: `vectors` has another shape, or an id comes twice.
        """

    def search(
        self,
        vector: Vectors,
        k: int,
        allowed_ids: Collection[int] | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> list[tuple[int, float]]:
        """The `k` vectors with the largest inner product with `vector` `[dim]`, of these ids.

        Returns:
            (id, inner product), best first, ties by id.
        """

    @property
    def recall(self) -> float:
        """Share of the ten best that the least exact index finds; NaN if it was not measured."""

    def overdue(self) -> list[Scope]:
        """Scopes whose index no longer suits their size: `rebuild` mends it."""

    def rebuild(self, scope: Scope, stopped: Stopped = lambda: False) -> None:
        """Give a scope the index that suits its size.

        Raises:
            BuildStopped: `stopped` returned true; nothing has changed.
        """

    def save(self, directory: Path, space: EmbeddingSpace, generation: int, token: str) -> Manifest:
        """Note which state of the catalog this is, and what it takes to begin from there."""

    def load(self, directory: Path, space: EmbeddingSpace) -> Manifest:
        """Begin from what was saved; on any error nothing is changed.

        Raises:
            IndexMissing: nothing is saved.
            IndexCorrupt: it is damaged.
            EmbedderMismatch: another embedder made it.
        """
