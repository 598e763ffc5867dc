"""Vectors by id, searched by inner product. Knows no texts, documents or embedder models.

Exact search (FAISS IDMap2 over Flat): it can remove, and up to some 200,000 chunks it is fast
enough. faiss is imported on first use. Saved as two files, so that a crash never leaves a pair
that is half new:

    index-<checksum>.faiss    written, fsynced and renamed first
    manifest.json             names it; its rename is the moment of the save
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
from retriever.errors import EmbedderMismatch, IndexCorrupt, IndexMissing
from retriever.locks import ReadWriteLock

_MANIFEST = "manifest.json"
_FORMAT = 1
# FAISS may sum one product in another order when it looks for a range instead of the best k.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Manifest:
    """What a saved index holds; `generation` and `token` name the catalog's state it mirrors."""

    name: str
    revision: str
    dim: int
    count: int
    file: str
    sha256: str
    generation: int
    token: str
    format: int = _FORMAT


class VectorIndex:
    """Thread-safe: searches run side by side, changes alone. Empty until reset() or load()."""

    def __init__(self) -> None:
        self._lock = ReadWriteLock()
        self._saving = threading.Lock()
        self._faiss: Any = None
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> frozenset[int]:
        with self._lock.read():
            return frozenset(self._ids)

    def reset(self, dim: int) -> None:
        """Drop everything and hold vectors of `dim` from now on."""
        empty = _empty(dim)
        with self._lock.write():
            self._faiss, self._ids = empty, set()

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Put vectors [len(ids), dim] under `ids`; an id that is there is replaced."""
        self.replace((), ids, vectors)

    def remove(self, ids: Collection[int]) -> int:
        """Take vectors out; unknown ids are ignored. Returns how many went."""
        with self._lock.write():
            return self._remove(ids)

    def replace(self, removed: Collection[int], ids: Sequence[int], vectors: Vectors) -> None:
        """Remove and add as one step: no search sees the one without the other."""
        with self._lock.write():
            if vectors.shape != (len(ids), self._faiss.d) or len(set(ids)) != len(ids):
                raise ValueError(f"{len(ids)} ids for vectors of shape {vectors.shape}")
            self._remove([*removed, *ids])
            if ids:
                self._faiss.add_with_ids(
                    np.ascontiguousarray(vectors, dtype=np.float32),
                    np.asarray(ids, dtype=np.int64),
                )
                self._ids.update(ids)

    def search(
        self, vector: Vectors, k: int, allowed_ids: Collection[int] | None = None
    ) -> list[tuple[int, float]]:
        """The `k` best (id, inner product) of `vector` [dim], among `allowed_ids` if given.

        Best first, ties by id, also where a tie lies across the k-th place.
        """
        with self._lock.read():
            allowed = self._ids if allowed_ids is None else self._ids.intersection(allowed_ids)
            if k <= 0 or not allowed:
                return []
            parameters = None if allowed_ids is None else _selector(allowed)
            query = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
            # One more than wanted shows whether the last place is shared.
            fetched = min(k + 1, len(allowed))
            scores, ids = self._faiss.search(query, fetched, params=parameters)
            scores, ids = scores[0], ids[0]
            if fetched > k and scores[k] == scores[k - 1]:
                below = float(scores[k]) - _ROUNDING
                _, scores, ids = self._faiss.range_search(query, below, params=parameters)
        hits = [(int(i), float(score)) for i, score in zip(ids, scores, strict=True)]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]

    def save(self, directory: Path, space: EmbeddingSpace, generation: int, token: str) -> Manifest:
        """Write index and manifest; what was saved before stays valid until the very end."""
        with self._saving:
            return self._save(directory, space, generation, token)

    def load(self, directory: Path, space: EmbeddingSpace) -> Manifest:
        """Take the saved index's place. On any error this index stays as it was.

        Raises IndexMissing, IndexCorrupt, or EmbedderMismatch if another embedder made it.
        """
        import faiss

        manifest = read_manifest(directory)
        saved = EmbeddingSpace(manifest.name, manifest.revision, manifest.dim)
        if saved != space:
            raise EmbedderMismatch(f"the saved index is of {saved}, the embedder is {space}")
        path = directory / manifest.file
        # Checked before faiss parses it: faiss trusts the sizes it reads.
        if not path.is_file() or _checksum(path) != manifest.sha256:
            raise IndexCorrupt(f"{path} is missing or its checksum does not hold")
        loaded: Any = faiss.read_index(str(path))
        ids = {int(i) for i in faiss.vector_to_array(loaded.id_map)}
        if loaded.d != space.dim or len(ids) != manifest.count or loaded.ntotal != manifest.count:
            raise IndexCorrupt(f"{path} does not hold what its manifest says")
        with self._lock.write():
            self._faiss, self._ids = loaded, ids
        return manifest

    def _save(
        self, directory: Path, space: EmbeddingSpace, generation: int, token: str
    ) -> Manifest:
        import faiss

        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / "index.tmp"
        with self._lock.read():
            faiss.write_index(self._faiss, str(partial))
            count = len(self._ids)
        checksum = _checksum(partial)
        manifest = Manifest(
            **asdict(space),
            count=count,
            file=f"index-{checksum[:16]}.faiss",
            sha256=checksum,
            generation=generation,
            token=token,
        )
        _publish(partial, directory / manifest.file)
        partial = directory / "manifest.tmp"
        partial.write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
        _publish(partial, directory / _MANIFEST)
        for old in directory.glob("index-*.faiss"):
            if old.name != manifest.file:
                old.unlink(missing_ok=True)
        return manifest

    def _remove(self, ids: Collection[int]) -> int:
        gone = self._ids.intersection(ids)
        if gone:
            self._faiss.remove_ids(np.fromiter(gone, dtype=np.int64, count=len(gone)))
            self._ids -= gone
        return len(gone)


def read_manifest(directory: Path) -> Manifest:
    """Raises IndexMissing, or IndexCorrupt if it cannot be understood."""
    try:
        fields = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(**fields)
    except FileNotFoundError as error:
        raise IndexMissing(f"no index is saved in {directory}") from error
    except (OSError, ValueError, TypeError) as error:
        raise IndexCorrupt(f"the manifest in {directory} cannot be read: {error}") from error
    if manifest.format != _FORMAT or Path(manifest.file).name != manifest.file:
        raise IndexCorrupt(f"the manifest in {directory} is of another format")
    return manifest


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
    """fsync, rename, fsync the folder: after a crash the name means the whole file or the old."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(final)
    with contextlib.suppress(OSError):  # not every file system lets a folder be fsynced
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
