"""Vector search: vectors by scope and chunk id, searched by inner product.

The search is exact (FAISS IDMap2 over Flat). It supports removal, and is fast enough for up to
about 200,000 chunks per scope. Every scope has a FAISS index of its own, so a search neither sees
nor pays for other tenants' vectors. faiss is imported on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.errors import EmbedderMismatch, InvalidVectors
from retriever.scope import DEFAULT_SCOPE, Scope
from retriever.search.index_files import (
    Manifest,
    SavedScope,
    read_manifest,
    read_scope,
    write_manifest,
    write_scope,
)
from retriever.search.read_write_lock import ReadWriteLock

# FAISS may sum a product in another order in a range search than in a search for the best k.
_ROUNDING = 1e-6


@dataclass
class _ScopeIndex:
    """One scope's vectors; `saved` is their file if they have not changed since it was written."""

    faiss: Any
    ids: set[int]
    saved: SavedScope | None = None

    def remove(self, ids: Collection[int]) -> int:
        gone = self.ids.intersection(ids)
        if gone:
            self.faiss.remove_ids(np.fromiter(gone, dtype=np.int64, count=len(gone)))
            self.ids -= gone
            self.saved = None
        return len(gone)


class VectorIndex:
    """Vectors of all scopes; thread-safe. It is empty until `reset` or `load`."""

    def __init__(self) -> None:
        self._lock = ReadWriteLock()
        self._saving = threading.Lock()
        self._dim = 0
        self._parts: dict[Scope, _ScopeIndex] = {}

    def __len__(self) -> int:
        return sum(len(part.ids) for part in list(self._parts.values()))

    @property
    def ids(self) -> frozenset[int]:
        with self._lock.read():
            return frozenset().union(*(part.ids for part in self._parts.values()))

    def count(self, scope: Scope = DEFAULT_SCOPE) -> int:
        """Number of vectors of a scope."""
        with self._lock.read():
            part = self._parts.get(scope)
            return 0 if part is None else len(part.ids)

    def reset(self, dim: int) -> None:
        """Remove everything; from now on vectors have `dim` dimensions."""
        with self._lock.write():
            self._dim, self._parts = dim, {}

    def add(self, ids: Sequence[int], vectors: Vectors, *, scope: Scope = DEFAULT_SCOPE) -> None:
        """Add vectors `[len(ids), dim]`; an id that exists is replaced."""
        self.replace((), ids, vectors, scope=scope)

    def remove(self, ids: Collection[int], *, scope: Scope = DEFAULT_SCOPE) -> int:
        """Remove vectors of a scope; unknown ids are ignored. Returns how many were removed."""
        with self._lock.write():
            return self._remove(ids, scope)

    def replace(
        self,
        removed: Collection[int],
        ids: Sequence[int],
        vectors: Vectors,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> None:
        """Remove and add in one step: no search sees one change without the other.

        Raises:
            InvalidVectors: `vectors` has another shape, or an id comes twice.
        """
        with self._lock.write():
            if vectors.shape != (len(ids), self._dim) or len(set(ids)) != len(ids):
                raise InvalidVectors(f"{len(ids)} ids for vectors of shape {vectors.shape}")
            self._remove([*removed, *ids], scope)
            if ids:
                part = self._parts.setdefault(scope, _ScopeIndex(_empty(self._dim), set()))
                part.faiss.add_with_ids(
                    np.ascontiguousarray(vectors, dtype=np.float32),
                    np.asarray(ids, dtype=np.int64),
                )
                part.ids.update(ids)
                part.saved = None

    def search(
        self,
        vector: Vectors,
        k: int,
        allowed_ids: Collection[int] | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> list[tuple[int, float]]:
        """The `k` vectors with the largest inner product with `vector` `[dim]`.

        Args:
            vector: the query's vector.
            k: how many to find.
            allowed_ids: only these ids; None: all.
            scope: the tenant's collection.

        Returns:
            (id, inner product), best first, ties by id, also if a tie goes beyond the k-th place.
        """
        with self._lock.read():
            part = self._parts.get(scope)
            if part is None or k <= 0:
                return []
            allowed = part.ids if allowed_ids is None else part.ids.intersection(allowed_ids)
            if not allowed:
                return []
            parameters = None if allowed_ids is None else _selector(allowed)
            query = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
            # One hit more than wanted shows whether there is a tie at the last place.
            fetched = min(k + 1, len(allowed))
            scores, ids = part.faiss.search(query, fetched, params=parameters)
            scores, ids = scores[0], ids[0]
            if fetched > k and scores[k] == scores[k - 1]:
                below = float(scores[k]) - _ROUNDING
                _, scores, ids = part.faiss.range_search(query, below, params=parameters)
        hits = [(int(i), float(score)) for i, score in zip(ids, scores, strict=True)]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]

    def save(self, directory: Path, space: EmbeddingSpace, generation: int, token: str) -> Manifest:
        """Write changed scopes and the manifest; the previous save stays valid until the end."""
        with self._saving:
            directory.mkdir(parents=True, exist_ok=True)
            with self._lock.read():
                for scope, part in self._parts.items():
                    if part.saved is None or not (directory / part.saved.file).is_file():
                        part.saved = write_scope(directory, scope, part.faiss, len(part.ids))
                scopes = tuple(part.saved for part in self._parts.values() if part.saved)
            manifest = Manifest(**asdict(space), generation=generation, token=token, scopes=scopes)
            write_manifest(directory, manifest)
            return manifest

    def load(self, directory: Path, space: EmbeddingSpace) -> Manifest:
        """Replace the content by a saved index; on any error it stays as it was.

        Raises:
            IndexMissing: nothing is saved there.
            IndexCorrupt: the manifest or a file is damaged.
            EmbedderMismatch: another embedder made it.
        """
        manifest = read_manifest(directory)
        saved = EmbeddingSpace(manifest.name, manifest.revision, manifest.dim)
        if saved != space:
            raise EmbedderMismatch(f"the saved index is of {saved}, the embedder is {space}")
        parts = {
            Scope(saved.tenant, saved.collection): _ScopeIndex(
                *read_scope(directory, saved, space.dim), saved
            )
            for saved in manifest.scopes
        }
        with self._lock.write():
            self._dim, self._parts = space.dim, parts
        return manifest

    def _remove(self, ids: Collection[int], scope: Scope) -> int:
        part = self._parts.get(scope)
        if part is None:
            return 0
        gone = part.remove(ids)
        if not part.ids:
            del self._parts[scope]
        return gone


def _empty(dim: int) -> Any:
    import faiss

    return faiss.IndexIDMap2(faiss.IndexFlatIP(dim))


def _selector(ids: Collection[int]) -> Any:
    import faiss

    batch = faiss.IDSelectorBatch(np.fromiter(ids, dtype=np.int64, count=len(ids)))
    parameters: Any = faiss.SearchParameters  # SWIG's keyword constructor is not in its stubs
    return parameters(sel=batch)
