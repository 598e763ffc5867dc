"""The catalog's tables of companions: which other chunks a chunk's KV is computed behind.

A chunk has a row in `accompanied` once its companions were chosen, and one in `companions` for each
of them, which may be none. The rows of a chunk go with it. Rows that name a removed chunk as a
companion stay until `forget`, so that what was computed behind its text can be found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retriever.catalog import queries
from retriever.catalog.database import Database
from retriever.documents import Chunk
from retriever.embedders.base import Vectors
from retriever.scope import Scope
from retriever.sql.connection import Row

Kind = Literal["primer", "neighbours"]
"""One set for all chunks of a collection, or each chunk's nearest ones."""

_COMPANIONS = """
    SELECT companions.chunk_id AS chunk_id, position, companion_id
    FROM companions JOIN accompanied USING (chunk_id)
"""


def _place(row: Row) -> int:
    return int(row["position"])


@dataclass(frozen=True)
class Accompanied:
    """A chunk with its companions, in the order in which they stand before it."""

    chunk: Chunk
    companions: list[Chunk]


class CompanionTable:
    """Thread-safe; the database must have been started."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, chunk_ids: Collection[int], kind: Kind) -> dict[int, list[Chunk]]:
        """Companions by chunk; chunks for which none were chosen are left out.

        A chunk that has lost a companion has none: what was computed behind them is to be purged.
        """
        with self._database.read() as read:
            chosen = queries.rows_where_in(
                read,
                "SELECT chunk_id FROM accompanied WHERE kind = ? AND chunk_id",
                chunk_ids,
                kind,
            )
            rows = sorted(
                queries.rows_where_in(
                    read, _COMPANIONS + "WHERE kind = ? AND chunk_id", chunk_ids, kind
                ),
                key=_place,
            )
            named = {row["companion_id"] for row in rows}
            texts = queries.rows_where_in(read, queries.CHUNK + "WHERE chunk_id", named)
        found = {row["chunk_id"]: Chunk(**row) for row in texts}
        companions: dict[int, list[Chunk]] = {row["chunk_id"]: [] for row in chosen}
        lost = {row["chunk_id"] for row in rows if row["companion_id"] not in found}
        for row in rows:
            if row["chunk_id"] not in lost:
                companions[row["chunk_id"]].append(found[row["companion_id"]])
        return companions

    def behind(self, companion_ids: Collection[int]) -> dict[int, list[Accompanied]]:
        """By companion, the chunks that it stands before; call it before any of them is removed."""
        with self._database.read() as read:
            rows = queries.rows_where_in(
                read, "SELECT companion_id, chunk_id FROM companions WHERE companion_id",
                companion_ids,
            )  # fmt: skip
        found = {a.chunk.chunk_id: a for a in self.accompanied({row["chunk_id"] for row in rows})}
        out: dict[int, list[Accompanied]] = {}
        for row in rows:
            if row["chunk_id"] in found:
                out.setdefault(row["companion_id"], []).append(found[row["chunk_id"]])
        return out

    def accompanied(self, chunk_ids: Collection[int]) -> list[Accompanied]:
        """Those of these chunks that have companions, of whatever kind."""
        with self._database.read() as read:
            rows = sorted(
                queries.rows_where_in(read, _COMPANIONS + "WHERE chunk_id", chunk_ids), key=_place
            )
            named = {row["chunk_id"] for row in rows} | {row["companion_id"] for row in rows}
            texts = queries.rows_where_in(read, queries.CHUNK + "WHERE chunk_id", named)
        found = {row["chunk_id"]: Chunk(**row) for row in texts}
        companions: dict[int, list[Chunk]] = {}
        for row in rows:
            if row["chunk_id"] in found and row["companion_id"] in found:
                companions.setdefault(row["chunk_id"], []).append(found[row["companion_id"]])
        return [Accompanied(found[chunk_id], others) for chunk_id, others in companions.items()]

    def set(self, chunk_id: int, kind: Kind, companion_ids: Sequence[int]) -> None:
        """Companions of a chunk, in the order in which they stand before it."""
        with self._database.write() as write:
            write.execute("DELETE FROM companions WHERE chunk_id = ?", (chunk_id,))
            exists = "SELECT 1 FROM chunks WHERE chunk_id = ?"
            if write.execute(exists, (chunk_id,)).fetchone() is None:
                return  # it was removed meanwhile
            write.execute(
                "INSERT INTO accompanied (chunk_id, kind) VALUES (?, ?) "
                "ON CONFLICT (chunk_id) DO UPDATE SET kind = excluded.kind, exact = 0",
                (chunk_id, kind),
            )
            write.executemany(
                "INSERT INTO companions VALUES (?, ?, ?)",
                [(chunk_id, place, companion) for place, companion in enumerate(companion_ids)],
            )

    def forget(self, companion_ids: Collection[int]) -> None:
        """Chunks behind these removed ones have no companions any more; they are to be chosen."""
        with self._database.write() as write:
            rows = queries.rows_where_in(
                write, "SELECT DISTINCT chunk_id FROM companions WHERE companion_id", companion_ids
            )
            chunk_ids = [row["chunk_id"] for row in rows]
            for table in ("companions", "accompanied"):
                queries.change_where_in(write, f"DELETE FROM {table} WHERE chunk_id", chunk_ids)

    def set_exact(self, chunk_ids: Collection[int]) -> None:
        """The chunks are stored behind nothing but S, too, for prompts that begin with them."""
        with self._database.write() as write:
            update = "UPDATE accompanied SET exact = 1 WHERE chunk_id"
            queries.change_where_in(write, update, chunk_ids)

    def open(self, kind: Kind, limit: int) -> list[tuple[Scope, str]]:
        """Documents with chunks whose companions are not chosen, or that are not stored exactly."""
        query = """
            SELECT DISTINCT tenant, collection, doc_id FROM chunks JOIN documents USING (document)
            JOIN scopes USING (scope_id) LEFT JOIN accompanied USING (chunk_id)
            WHERE kind IS NULL OR kind != ? OR exact = 0 LIMIT ?
        """
        with self._database.read() as read:
            rows = read.execute(query, (kind, limit)).fetchall()
        return [(Scope(row["tenant"], row["collection"]), row["doc_id"]) for row in rows]

    def groups(self, scope: Scope, count: int, dim: int) -> list[list[tuple[int, Vectors]]]:
        """The groups of a collection that have all their `count` central chunks.

        Each chunk comes with its vector, of `dim` numbers.
        """
        query = """
            SELECT number, chunk_id, vector FROM primers JOIN vectors USING (chunk_id)
            WHERE scope_id = ? AND length(vector) = 4 * ? ORDER BY number, position
        """
        with self._database.read() as read:
            rows = read.execute(query, (queries.find_scope(read, scope), dim)).fetchall()
        found: dict[int, list[tuple[int, Vectors]]] = {}
        for row in rows:
            member = (row["chunk_id"], np.frombuffer(row["vector"], dtype="<f4"))
            found.setdefault(row["number"], []).append(member)
        return [group for group in found.values() if len(group) == count]

    def add_groups(self, scope: Scope, groups: Sequence[Sequence[int]]) -> None:
        """Further groups, by the ids of their central chunks."""
        with self._database.write() as write:
            scope_id = queries.find_scope(write, scope)
            last = "SELECT coalesce(max(number), 0) AS last FROM primers WHERE scope_id = ?"
            first = write.execute(last, (scope_id,)).fetchone()["last"] + 1
            write.executemany(
                "INSERT INTO primers SELECT CAST(? AS BIGINT), CAST(? AS INTEGER), "
                "CAST(? AS INTEGER), chunk_id FROM chunks WHERE chunk_id = ?",
                [
                    (scope_id, number, place, chunk_id)
                    for number, group in enumerate(groups, first)
                    for place, chunk_id in enumerate(group)
                ],
            )

    def sample(self, scope: Scope, limit: int, dim: int) -> tuple[list[int], Vectors]:
        """Ids and vectors `[n, dim]` of some chunks of a collection, the same ones every time."""
        query = """
            SELECT chunk_id, vector FROM vectors JOIN chunks USING (chunk_id)
            JOIN documents USING (document) WHERE scope_id = ? AND length(vector) = 4 * ?
            ORDER BY (chunk_id * 2654435761) % 4294967291 LIMIT ?
        """
        with self._database.read() as read:
            rows = read.execute(query, (queries.find_scope(read, scope), dim, limit)).fetchall()
        vectors = [np.frombuffer(row["vector"], dtype="<f4") for row in rows]
        return [row["chunk_id"] for row in rows], np.array(vectors, dtype=np.float32)

    def chunks(self, chunk_ids: Sequence[int]) -> list[Chunk]:
        """Chunks in the order of the ids; ids that no longer exist are left out."""
        with self._database.read() as read:
            rows = queries.rows_where_in(read, queries.CHUNK + "WHERE chunk_id", chunk_ids)
        found = {row["chunk_id"]: Chunk(**row) for row in rows}
        return [found[chunk_id] for chunk_id in chunk_ids if chunk_id in found]

    def vector(self, chunk_id: int) -> Vectors | None:
        """The embedding of a chunk `[dim]`."""
        query = "SELECT vector FROM vectors WHERE chunk_id = ?"
        with self._database.read() as read:
            row = read.execute(query, (chunk_id,)).fetchone()
        return None if row is None else np.frombuffer(row["vector"], dtype="<f4")
