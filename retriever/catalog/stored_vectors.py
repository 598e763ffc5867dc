"""Statements that read vectors: all of them, and those of the last changes.

The caller holds a transaction on the given connection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, bindparam, select

from retriever.catalog.catalog_records import CatalogState, IndexChange
from retriever.catalog.tables import changes, chunks, documents, scopes, spaces, vectors
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.scope import Scope
from retriever.sql.expressions import among

_CHANGES_AT_A_TIME = 256


def all_vectors(
    connection: Connection, space: EmbeddingSpace, batch: int
) -> Iterator[tuple[Scope, npt.NDArray[np.int64], Vectors]]:
    """Yield all vectors of an embedding space: (scope, chunk ids `[n]`, vectors `[n, dim]`)."""
    query = (
        select(scopes.c.tenant, scopes.c.collection, vectors.c.chunk_id, vectors.c.vector)
        .join_from(vectors, spaces, vectors.c.space_id == spaces.c.space_id)
        .join(chunks, chunks.c.chunk_id == vectors.c.chunk_id)
        .join(documents, documents.c.document == chunks.c.document)
        .join(scopes, scopes.c.scope_id == documents.c.scope_id)
        .where(spaces.c.name == space.name, spaces.c.revision == space.revision)
        .where(spaces.c.dim == space.dim, vectors.c.chunk_id > bindparam("last"))
        .order_by(vectors.c.chunk_id)
        .limit(batch)
    )
    last = 0
    while found := connection.execute(query, {"last": last}).all():
        last = found[-1].chunk_id
        by_scope: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
        for tenant, collection, chunk_id, vector in found:
            by_scope[tenant, collection].append((chunk_id, vector))
        for names, pairs in by_scope.items():
            ids = np.array([chunk_id for chunk_id, _ in pairs], dtype=np.int64)
            blob = b"".join(vector for _, vector in pairs)
            rows = np.frombuffer(blob, dtype="<f4").reshape(len(pairs), space.dim)
            yield Scope(*names), ids, rows


def changes_since(
    read: Connection, since: CatalogState, space: EmbeddingSpace
) -> tuple[CatalogState, list[IndexChange]] | None:
    """See Catalog.changes_since. Vectors of chunks that are gone again are left out."""
    query = select(changes).where(changes.c.generation >= since.generation)
    rows = read.execute(query.order_by(changes.c.generation).limit(_CHANGES_AT_A_TIME)).all()
    if not rows or (rows[0].generation, rows[0].token) != (since.generation, since.token):
        return None
    added = [chunk_id for row in rows[1:] for chunk_id in row.added]
    stored = select(vectors.c.chunk_id, vectors.c.vector).where(among(vectors.c.chunk_id, added))
    found = {i: np.frombuffer(blob, dtype="<f4") for i, blob in read.execute(stored)}
    followed: list[IndexChange] = []
    for row in rows[1:]:
        ids = [chunk_id for chunk_id in row.added if chunk_id in found]
        new = np.array([found[i] for i in ids], dtype=np.float32).reshape(len(ids), space.dim)
        scope = Scope(row.tenant, row.collection)
        followed.append(IndexChange(scope, list(row.removed), ids, new))
    return CatalogState(rows[-1].generation, rows[-1].token), followed
