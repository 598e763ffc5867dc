"""What the retriever asks of an index of vectors: FAISS in this process, or pgvector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path

from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import InvalidVectors
from kvstitch.retriever.index.index_files import Manifest
from kvstitch.retriever.index.scope_index import Stopped
from kvstitch.retriever.scope import DEFAULT_SCOPE, Scope


class VectorSearch(ABC):
    """Vectors of all scopes; thread-safe. It is empty until `reset` or `load`."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def reset(self, dim: int) -> None:
        """Begin anew with vectors of `dim` dimensions; what is right already may stay."""

    def add(self, ids: Sequence[int], vectors: Vectors, *, scope: Scope = DEFAULT_SCOPE) -> None:
        """Add vectors `[len(ids), dim]`; an id that exists is replaced."""
        self.replace((), ids, vectors, scope=scope)

    def complete(self) -> None:  # noqa: B027 (an index may need nothing)
        """Make what finds vectors quickly: all have been added after `reset`."""

    @abstractmethod
    def remove(self, ids: Collection[int], *, scope: Scope = DEFAULT_SCOPE) -> int:
        """Remove vectors of a scope; unknown ids are ignored. Returns how many were removed."""

    @abstractmethod
    def replace(
        self,
        removed: Collection[int],
        ids: Sequence[int],
        vectors: Vectors,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> None:
        """Remove and add in one step: no search sees one change without the other. Raises
        InvalidVectors."""

    @abstractmethod
    def search(
        self,
        vector: Vectors,
        k: int,
        allowed_ids: Collection[int] | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> list[tuple[int, float]]:
        """Find the `k` vectors of a scope with the largest inner product with `vector` `[dim]`.

        Returns (id, inner product), best first, ties by id, also if a tie goes beyond the k-th
        place.
        """

    @property
    @abstractmethod
    def recall(self) -> float:
        """Share of the ten best that the least exact index finds; NaN if it was not measured."""

    def overdue(self) -> list[Scope]:
        """Return the scopes whose index no longer suits their size: `rebuild` mends it."""
        return []

    def rebuild(  # noqa: B027 (an index may need nothing)
        self, scope: Scope, stopped: Stopped = lambda: False
    ) -> None:
        """Give a scope the index that suits its size, while searches and changes go on; one thread
        at a time. Raises BuildStopped if `stopped` says so."""

    @abstractmethod
    def save(self, directory: Path, space: EmbeddingSpace, generation: int, token: str) -> Manifest:
        """Note which state of the catalog this is, and what it takes to begin from there."""

    @abstractmethod
    def load(self, directory: Path, space: EmbeddingSpace) -> Manifest:
        """Begin from what was saved; raises IndexMissing, IndexCorrupt or EmbedderMismatch, and
        nothing is changed then."""


def check_shape(ids: Sequence[int], vectors: Vectors, dim: int) -> None:
    """Raise InvalidVectors unless there is one vector of `dim` for each id, and no id twice."""
    if vectors.shape != (len(ids), dim) or len(set(ids)) != len(ids):
        raise InvalidVectors(f"{len(ids)} ids for vectors of shape {vectors.shape}")
