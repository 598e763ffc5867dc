"""Vector search: vectors by scope and chunk id, searched by inner product.

Every scope has a FAISS index of its own, so a search neither sees nor pays for other tenants'
vectors. While a scope is small its search is exact; a larger one gets inverted lists, which are
built beside it while it is searched and changed. faiss is imported on first use.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import EmbedderMismatch
from kvstitch.retriever.index.index_files import (
    Manifest,
    read_manifest,
    read_scope,
    write_manifest,
    write_scope,
)
from kvstitch.retriever.index.scope_index import DEPTHS, ScopeIndex, Stopped, build
from kvstitch.retriever.index.vector_search import VectorSearch, check_shape
from kvstitch.retriever.scope import DEFAULT_SCOPE, Scope


class ReadWriteLock:
    """Readers share the lock, a writer has it alone. A waiting writer goes before new readers.

    It is not reentrant: a thread that holds it must not ask for it again.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._waiting_writers = 0
        self._writing = False

    @contextmanager
    def read(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._writing and not self._waiting_writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        with self._condition:
            self._waiting_writers += 1
            try:
                self._condition.wait_for(lambda: not self._writing and not self._readers)
                self._writing = True
            finally:
                self._waiting_writers -= 1
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()


logger = logging.getLogger(__name__)

EXACT_UP_TO = 200_000
"""Vectors of a scope up to which its search is exact: about 20 ms on one core."""


class VectorIndex(VectorSearch):
    """Vectors of all scopes; thread-safe. It is empty until `reset` or `load`."""

    def __init__(self, *, exact_up_to: int = EXACT_UP_TO) -> None:
        self._exact_up_to = exact_up_to
        self._lock = ReadWriteLock()
        self._saving = threading.Lock()
        self._dim = 0
        self._parts: dict[Scope, ScopeIndex] = {}

    def __len__(self) -> int:
        return sum(len(part.ids) for part in list(self._parts.values()))

    @property
    def ids(self) -> frozenset[int]:
        with self._lock.read():
            return frozenset().union(*(part.ids for part in self._parts.values()))

    def reset(self, dim: int) -> None:
        with self._lock.write():
            self._dim, self._parts = dim, {}

    def remove(self, ids: Collection[int], *, scope: Scope = DEFAULT_SCOPE) -> int:
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
        with self._lock.write():
            check_shape(ids, vectors, self._dim)
            self._remove([*removed, *ids], scope)
            if ids:
                part = self._parts.setdefault(scope, ScopeIndex.empty(self._dim))
                part.add(ids, vectors)

    def search(
        self,
        vector: Vectors,
        k: int,
        allowed_ids: Collection[int] | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> list[tuple[int, float]]:
        with self._lock.read():
            part = self._parts.get(scope)
            return [] if part is None else part.search(vector, k, allowed_ids)

    @property
    def recall(self) -> float:
        """Recall of the scope whose search is the least exact, as measured when it was built."""
        with self._lock.read():
            return min((p.reads.recall for p in self._parts.values() if p.reads), default=1.0)

    def overdue(self) -> list[Scope]:
        with self._lock.read():
            return [scope for scope, part in self._parts.items() if self._is_overdue(part)]

    def rebuild(self, scope: Scope, stopped: Stopped = lambda: False) -> None:
        """Take a minute for a million vectors, and memory for a second copy of them."""
        with self._lock.read():
            part = self._parts.get(scope)
            if part is None:
                return
            ids, vectors = part.content()
            # Only writers touch it otherwise, and they wait for the readers.
            part.changes = {}
        try:
            large = len(ids) > self._exact_up_to
            built = build(ids, vectors, stopped) if large else None
            with self._lock.write():
                part.measured_at = len(ids)
                if built is not None:
                    part.replace_by(*built)
                elif part.reads is not None:
                    exact = ScopeIndex.empty(self._dim)
                    exact.add(ids.tolist(), vectors)
                    part.replace_by(exact.faiss, None)
        finally:
            with self._lock.write():
                part.changes = None
        if built is not None:
            logger.info(
                "%d vectors lie in %d lists, of which %s are read for the %s best: recall %.3f",
                len(ids), built[0].nlist, built[1].probes, DEPTHS, built[1].recall,
            )  # fmt: skip
        elif large:
            logger.warning("%d vectors do not fall into groups: search stays exact", len(ids))

    def _is_overdue(self, part: ScopeIndex) -> bool:
        count = len(part.ids)
        if part.reads is not None and count < self._exact_up_to // 2:
            return True
        # Lists that were made for half as many vectors are too few, and their recall is not known.
        return count > self._exact_up_to and count >= 2 * part.measured_at

    def save(self, directory: Path, space: EmbeddingSpace, generation: int, token: str) -> Manifest:
        """Write changed scopes and the manifest; the previous save stays valid until the end."""
        with self._saving:
            directory.mkdir(parents=True, exist_ok=True)
            with self._lock.read():
                for scope, part in self._parts.items():
                    if part.saved is None or not (directory / part.saved.file).is_file():
                        part.saved = write_scope(
                            directory, scope, part.faiss, len(part.ids), part.reads
                        )
                scopes = tuple(part.saved for part in self._parts.values() if part.saved)
            manifest = Manifest(**asdict(space), generation=generation, token=token, scopes=scopes)
            write_manifest(directory, manifest)
            return manifest

    def load(self, directory: Path, space: EmbeddingSpace) -> Manifest:
        manifest = read_manifest(directory)
        saved = EmbeddingSpace(manifest.name, manifest.revision, manifest.dim)
        if saved != space:
            raise EmbedderMismatch(f"the saved index is of {saved}, the embedder is {space}")
        parts = {
            Scope(saved.tenant, saved.collection): ScopeIndex(
                *read_scope(directory, saved, space.dim),
                reads=saved.reads,
                saved=saved,
                measured_at=saved.count if saved.reads is not None else 0,
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
