"""The log of changes of a shared catalog: what the other gateways' vector indexes follow.

Generations are given out in the order of commits, because each change locks the row of the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retriever.catalog import queries
from retriever.catalog.catalog_records import CatalogState, IndexChange
from retriever.embedders.base import EmbeddingSpace
from retriever.scope import Scope
from retriever.sql.connection import Connection

KEPT = 100_000  # changes; an index that is further behind is rebuilt
_PRUNE_EVERY = 1000
_AT_A_TIME = 256


def add(
    write: Connection,
    state: CatalogState,
    scope: Scope,
    removed: Sequence[int],
    added: Sequence[int],
) -> None:
    """Note the change that has led to this state."""
    write.execute(
        "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)",
        (state.generation, state.token, scope.tenant, scope.collection,
         write.listed(removed), write.listed(added)),
    )  # fmt: skip
    if state.generation % _PRUNE_EVERY == 0:
        write.execute("DELETE FROM changes WHERE generation < ?", (state.generation - KEPT,))


def since(
    read: Connection, state: CatalogState, space: EmbeddingSpace
) -> tuple[CatalogState, list[IndexChange]] | None:
    """See Catalog.changes_since. Vectors of chunks that are gone again are left out."""
    rows = read.execute(
        "SELECT * FROM changes WHERE generation >= ? ORDER BY generation LIMIT ?",
        (state.generation, _AT_A_TIME),
    ).fetchall()
    if not rows or rows[0]["generation"] != state.generation or rows[0]["token"] != state.token:
        return None
    last = CatalogState(rows[-1]["generation"], rows[-1]["token"])
    added = [chunk_id for row in rows[1:] for chunk_id in row["added"]]
    stored = queries.rows_where_in(
        read, "SELECT chunk_id, vector FROM vectors WHERE chunk_id", added
    )
    vectors = {row["chunk_id"]: np.frombuffer(row["vector"], dtype="<f4") for row in stored}
    changes: list[IndexChange] = []
    for row in rows[1:]:
        ids = [chunk_id for chunk_id in row["added"] if chunk_id in vectors]
        found = np.array([vectors[i] for i in ids], dtype=np.float32).reshape(len(ids), space.dim)
        scope = Scope(row["tenant"], row["collection"])
        changes.append(IndexChange(scope, list(row["removed"]), ids, found))
    return last, changes
