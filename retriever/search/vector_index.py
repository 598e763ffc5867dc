"""Vector search: vectors by scope and chunk id, searched by inner product.

The search is exact (FAISS IDMap2 over Flat). It supports removal, and is fast enough for up to
about 200,000 chunks per scope. Every scope has a FAISS index of its own, so a search neither sees
nor pays for other tenants' vectors. faiss is imported on first use. A crash during a save leaves
either the old files or the new ones:

    index-<checksum>.faiss    one per scope; written, fsynced and renamed first
    manifest.json             names them; the save takes effect when it is renamed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.errors import (
    EmbedderMismatch,
    IndexCorrupt,
    IndexMissing,
    InvalidQuery,
    InvalidVectors,
)
from retriever.scope import DEFAULT_SCOPE, Scope
from retriever.search.read_write_lock import ReadWriteLock

_MANIFEST = "manifest.json"
_FORMAT = 2
# FAISS may sum a product in another order in a range search than in a search for the best k.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class SavedScope:
    """The file with one scope's vectors."""

    tenant: str
    collection: str
    count: int
    file: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a saved index holds.

    Attributes:
        name: name of the embedder.
        revision: revision of the embedder.
        dim: dimensions of the vectors.
        generation: generation of the catalog's state that the index mirrors.
        token: token of that state.
        scopes: one file per scope.
        format: version of the file format.
    """

    name: str
    revision: str
    dim: int
    generation: int
    token: str
    scopes: tuple[SavedScope, ...]
    format: int = _FORMAT

    @property
    def count(self) -> int:
        return sum(saved.count for saved in self.scopes)


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
                        part.saved = _save_part(directory, scope, part)
                scopes = tuple(part.saved for part in self._parts.values() if part.saved)
            manifest = Manifest(**asdict(space), generation=generation, token=token, scopes=scopes)
            partial = directory / "manifest.tmp"
            partial.write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
            _publish(partial, directory / _MANIFEST)
            kept = {saved.file for saved in scopes}
            for old in directory.glob("index-*.faiss"):
                if old.name not in kept:
                    old.unlink(missing_ok=True)
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
            Scope(saved.tenant, saved.collection): _load_part(directory, saved, space.dim)
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


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a saved index.

    Raises:
        IndexMissing: nothing is saved there.
        IndexCorrupt: the manifest cannot be read.
    """
    try:
        fields = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        scopes = tuple(SavedScope(**saved) for saved in fields.pop("scopes"))
        manifest = Manifest(**fields, scopes=scopes)
        whole = [Scope(saved.tenant, saved.collection) for saved in scopes]
    except FileNotFoundError as error:
        raise IndexMissing(f"no index is saved in {directory}") from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError, InvalidQuery) as error:
        raise IndexCorrupt(f"the manifest in {directory} cannot be read: {error}") from error
    inside = all(Path(saved.file).name == saved.file for saved in scopes)
    if manifest.format != _FORMAT or not inside or len(set(whole)) != len(whole):
        raise IndexCorrupt(f"the manifest in {directory} is of another format")
    return manifest


def _save_part(directory: Path, scope: Scope, part: _ScopeIndex) -> SavedScope:
    import faiss

    partial = directory / "index.tmp"
    faiss.write_index(part.faiss, str(partial))
    checksum = _checksum(partial)
    file = f"index-{checksum[:16]}.faiss"
    _publish(partial, directory / file)
    return SavedScope(scope.tenant, scope.collection, len(part.ids), file, checksum)


def _load_part(directory: Path, saved: SavedScope, dim: int) -> _ScopeIndex:
    import faiss

    path = directory / saved.file
    # The checksum comes before faiss parses the file, because faiss trusts the sizes it reads.
    if not path.is_file() or _checksum(path) != saved.sha256:
        raise IndexCorrupt(f"{path} is missing or its checksum does not hold")
    loaded: Any = faiss.read_index(str(path))
    ids = {int(i) for i in faiss.vector_to_array(loaded.id_map)}
    if loaded.d != dim or len(ids) != saved.count or loaded.ntotal != saved.count:
        raise IndexCorrupt(f"{path} does not hold what its manifest says")
    return _ScopeIndex(loaded, ids, saved)


def _empty(dim: int) -> Any:
    import faiss

    return faiss.IndexIDMap2(faiss.IndexFlatIP(dim))


def _selector(ids: Collection[int]) -> Any:
    import faiss

    batch = faiss.IDSelectorBatch(np.fromiter(ids, dtype=np.int64, count=len(ids)))
    parameters: Any = faiss.SearchParameters  # SWIG's keyword constructor is not in its stubs
    return parameters(sel=batch)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(partial: Path, final: Path) -> None:
    """fsync, rename, fsync the folder: after a crash the name is the new file or the old one."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(final)
    with contextlib.suppress(OSError):  # not every file system lets a folder be fsynced
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
