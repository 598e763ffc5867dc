"""The vectors of one scope: searched exactly while they are few, then by inverted lists."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retriever.embedders.base import Vectors
from retriever.index.index_files import SavedScope
from retriever.index.inverted_lists import Ids, Reads, list_content

# FAISS may sum a product in another order in a range search than in a search for the best k.
_ROUNDING = 1e-6


@dataclass
class ScopeIndex:
    """One scope's vectors. The caller holds a lock."""

    faiss: Any
    ids: set[int]
    reads: Reads | None = None
    saved: SavedScope | None = None
    measured_at: int = 0
    changes: dict[int, Vectors | None] | None = None

    @classmethod
    def empty(cls, dim: int) -> ScopeIndex:
        import faiss

        return cls(faiss.IndexIDMap2(faiss.IndexFlatIP(dim)), set())

    def remove(self, ids: Collection[int]) -> int:
        """Remove vectors; unknown ids are ignored. Returns how many were removed."""
        gone = self.ids.intersection(ids)
        if gone:
            self.faiss.remove_ids(np.fromiter(gone, dtype=np.int64, count=len(gone)))
            self.ids -= gone
            self.saved = None
            if self.changes is not None:
                self.changes.update(dict.fromkeys(gone))
        return len(gone)

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add vectors `[len(ids), dim]` under ids that it does not have."""
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        self.faiss.add_with_ids(rows, np.asarray(ids, dtype=np.int64))
        self.ids.update(ids)
        self.saved = None
        if self.changes is not None:
            self.changes.update(zip(ids, rows, strict=True))

    def search(
        self, vector: Vectors, k: int, allowed_ids: Collection[int] | None
    ) -> list[tuple[int, float]]:
        """(id, inner product) of the `k` best, best first, ties by id."""
        allowed = self.ids if allowed_ids is None else self.ids.intersection(allowed_ids)
        if not allowed or k <= 0:
            return []
        query = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
        selector = None if allowed_ids is None else _selector(allowed)
        probes = None
        if self.reads is not None:
            probes = self.reads.lists(k * len(self.ids) / len(allowed))
        hits = self._search(query, k, len(allowed), self._parameters(selector, probes))
        if len(hits) < min(k, len(allowed)):  # the lists that were read hold too few
            hits = self._search(query, k, len(allowed), self._parameters(selector, None))
        return hits

    def _search(
        self, query: Vectors, k: int, allowed: int, parameters: Any
    ) -> list[tuple[int, float]]:
        # One hit more than wanted shows whether there is a tie at the last place.
        fetched = min(k + 1, allowed)
        scores, ids = self.faiss.search(query, fetched, params=parameters)
        scores, ids = scores[0], ids[0]
        if fetched > k and ids[k] >= 0 and scores[k] == scores[k - 1]:
            below = float(scores[k]) - _ROUNDING
            _, scores, ids = self.faiss.range_search(query, below, params=parameters)
        found = zip(ids.tolist(), scores.tolist(), strict=True)
        hits = [(i, score) for i, score in found if i >= 0]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]

    def _parameters(self, selector: Any, probes: int | None) -> Any:
        """What a search reads: of so many lists (None: of all) what the selector selects."""
        if selector is None and self.reads is None:
            return None
        import faiss

        # SWIG's keywords are not in faiss's stubs.
        flat: Any = faiss.SearchParameters
        lists: Any = faiss.SearchParametersIVF
        if self.reads is None:
            return flat(sel=selector)
        return lists(sel=selector, nprobe=probes or self.faiss.nlist)

    def content(self) -> tuple[Ids, Vectors]:
        """A copy of the ids `[n]` and vectors `[n, dim]`."""
        import faiss

        index = self.faiss
        if self.reads is None:
            ids = faiss.vector_to_array(index.id_map)
            flat: Any = faiss.downcast_index(index.index)
            rows = faiss.rev_swig_ptr(flat.get_xb(), index.ntotal * index.d)
            return ids, rows.reshape(-1, index.d).copy()
        parts = [list_content(index, number) for number in range(index.nlist)]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([v for _, v in parts])

    def replace_by(self, index: Any, reads: Reads | None) -> None:
        """Search another FAISS index from now on: it gets the changes since it was begun."""
        assert self.changes is not None
        changes = self.changes
        if changes:
            index.remove_ids(np.fromiter(changes, dtype=np.int64, count=len(changes)))
        added = {i: vector for i, vector in changes.items() if vector is not None}
        if added:
            rows = np.stack(list(added.values()))
            index.add_with_ids(rows, np.fromiter(added, dtype=np.int64, count=len(added)))
        self.faiss, self.reads, self.saved = index, reads, None


def _selector(ids: Collection[int]) -> Any:
    import faiss

    return faiss.IDSelectorBatch(np.fromiter(ids, dtype=np.int64, count=len(ids)))
