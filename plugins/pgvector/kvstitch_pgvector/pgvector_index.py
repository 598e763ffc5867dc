"""Vector search in PostgreSQL with pgvector: no gateway holds the vectors in memory.

    halfvec, HNSW ── CANDIDATES per hit, iterative scan past what scope and filter leave out
                       └── float32 vectors of the candidates ── exact inner products ── the best k

Vectors of 16 bits in the graph are half as large; the order of the hits does not depend on them,
because candidates are scored by the vectors that the catalog has. A row goes with its chunk (by
foreign key), so that nothing stale is ever found; a row that is missing, because its writer died,
is added by whoever follows the catalog's log of changes. A graph is made at once of all rows that
are there: one row after the other takes many times as long. Until then every row is compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import DatabaseError, EmbedderMismatch, IndexMissing
from kvstitch.retriever.index.index_files import Manifest
from kvstitch.retriever.index.vector_search import VectorSearch, check_shape
from kvstitch.retriever.scope import DEFAULT_SCOPE, Scope
from kvstitch.retriever.sql.database import NO_LOCK, Database

CANDIDATES = 4  # per hit that is wanted
LEAST_CANDIDATES = 100
MOST_CANDIDATES = 1000  # pgvector's bound of ef_search
MIB = 1 << 20
PREPARING = 0x6B76_0004  # number of the advisory lock
# A graph that has room in memory while it is made is made several times as fast.
GRAPH_BYTES = 512  # of a row, beside its vector, while the graph is made
MOST_GRAPH_MIB = 2048

_ANY = "ANY(CAST(%s AS bigint[]))"
_SCOPE = "(SELECT scope_id FROM scopes WHERE tenant = %s AND collection = %s)"


class PgvectorIndex(VectorSearch):
    """Vectors of a PostgreSQL catalog, in a table beside it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dim = 0

    def __len__(self) -> int:
        with self._database.read() as read:
            return int(read.exec_driver_sql(f"SELECT count(*) FROM {self._table}").scalar_one())

    def reset(self, dim: int) -> None:
        """Make the table; its rows are right, and `add` adds those that are missing."""
        self._dim = dim
        with self._database.write(lock=PREPARING) as write:
            write.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
            write.exec_driver_sql(
                f"CREATE TABLE IF NOT EXISTS {self._table} (chunk_id BIGINT PRIMARY KEY REFERENCES "
                "chunks ON DELETE CASCADE, scope_id BIGINT NOT NULL, "
                f"embedding halfvec({dim}) NOT NULL)"
            )
            write.exec_driver_sql(
                f"CREATE INDEX IF NOT EXISTS {self._table}_scope ON {self._table} (scope_id)"
            )
            write.exec_driver_sql(
                "CREATE TABLE IF NOT EXISTS saved_vectors (name TEXT NOT NULL, revision TEXT NOT "
                "NULL, dim INTEGER NOT NULL, generation BIGINT NOT NULL, token TEXT NOT NULL)"
            )

    def complete(self) -> None:
        """Make the graph, if there is none; those who add rows wait meanwhile, searches do not."""
        try:
            self._make_graph(())
        except DatabaseError:
            # Processes that make it together need shared memory, of which a container may have too
            # little; one alone does not.
            self._make_graph(("max_parallel_maintenance_workers = 0",))

    def _make_graph(self, settings: Sequence[str]) -> None:
        name = f"{self._table}_hnsw"
        with self._database.write(lock=PREPARING) as write:
            if write.exec_driver_sql("SELECT to_regclass(%s)", (name,)).scalar():
                return
            rows = write.exec_driver_sql(f"SELECT count(*) FROM {self._table}").scalar_one()
            wanted = -(-rows * (2 * self._dim + GRAPH_BYTES) // MIB)
            given = write.exec_driver_sql(
                "SELECT CAST(setting AS bigint) / 1024 FROM pg_settings "
                "WHERE name = 'maintenance_work_mem'"
            ).scalar_one()
            memory = max(given, min(wanted, MOST_GRAPH_MIB))
            for setting in (f"maintenance_work_mem = '{memory}MB'", *settings):
                write.exec_driver_sql(f"SET LOCAL {setting}")
            write.exec_driver_sql(
                f"CREATE INDEX {name} ON {self._table} USING hnsw (embedding halfvec_ip_ops)"
            )

    def remove(self, ids: Collection[int], *, scope: Scope = DEFAULT_SCOPE) -> int:
        """Rows go with their chunks: there is nothing left to remove."""
        return 0

    def replace(
        self,
        removed: Collection[int],
        ids: Sequence[int],
        vectors: Vectors,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> None:
        check_shape(ids, vectors, self._dim)
        if not ids:
            return
        with self._database.write(lock=NO_LOCK) as write:
            query = f"SELECT chunk_id FROM {self._table} WHERE chunk_id = {_ANY}"
            there = set(write.exec_driver_sql(query, (list(ids),)).scalars())
            missing = [place for place, chunk_id in enumerate(ids) if chunk_id not in there]
            # A chunk that is deleted meanwhile gets no row; one that has its row keeps it.
            write.exec_driver_sql(
                f"INSERT INTO {self._table} "
                "SELECT chunk_id, scope_id, CAST(added.embedding AS halfvec) "
                "FROM unnest(CAST(%s AS bigint[]), CAST(%s AS text[])) "
                "AS added (chunk_id, embedding) "
                "JOIN chunks USING (chunk_id) JOIN documents USING (document) "
                "ORDER BY chunk_id FOR KEY SHARE OF chunks ON CONFLICT DO NOTHING",
                ([ids[place] for place in missing], [_text(vectors[place]) for place in missing]),
            )

    def search(
        self,
        vector: Vectors,
        k: int,
        allowed_ids: Collection[int] | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> list[tuple[int, float]]:
        if k <= 0 or (allowed_ids is not None and not allowed_ids):
            return []
        wanted = max(CANDIDATES * k, LEAST_CANDIDATES)
        with self._database.read() as read:
            driver: Any = read.connection.driver_connection  # as Prepared does, and for its reason
            driver.execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
            driver.execute(f"SET LOCAL hnsw.ef_search = {min(wanted, MOST_CANDIDATES)}")
            among = "" if allowed_ids is None else f"AND chunk_id = {_ANY}"
            ids = () if allowed_ids is None else (list(allowed_ids),)
            rows = driver.execute(
                "SELECT chunk_id, vector FROM vectors WHERE chunk_id IN (SELECT chunk_id "
                f"FROM {self._table} WHERE scope_id = {_SCOPE} {among} "
                "ORDER BY embedding <#> CAST(%s AS halfvec) LIMIT %s)",
                (scope.tenant, scope.collection, *ids, _text(vector), wanted),
            ).fetchall()
        if not rows:
            return []
        found = np.frombuffer(b"".join(blob for _, blob in rows), dtype="<f4")
        scores = found.reshape(len(rows), -1) @ np.asarray(vector, dtype=np.float32)
        hits = [(int(row[0]), float(s)) for row, s in zip(rows, scores, strict=True)]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]

    @property
    def recall(self) -> float:
        return math.nan

    def save(self, directory: Path, space: EmbeddingSpace, generation: int, token: str) -> Manifest:
        """Note the state in the database: what is in `directory` is not this index's."""
        manifest = Manifest(**asdict(space), generation=generation, token=token, scopes=())
        with self._database.write(lock=PREPARING) as write:
            write.exec_driver_sql("DELETE FROM saved_vectors WHERE generation <= %s", (generation,))
            write.exec_driver_sql(
                "INSERT INTO saved_vectors SELECT CAST(%s AS text), CAST(%s AS text), "
                "CAST(%s AS integer), CAST(%s AS bigint), CAST(%s AS text) "
                "WHERE NOT EXISTS (SELECT 1 FROM saved_vectors)",
                (space.name, space.revision, space.dim, generation, token),
            )
        return manifest

    def load(self, directory: Path, space: EmbeddingSpace) -> Manifest:
        self.reset(space.dim)
        with self._database.read() as read:
            row = read.exec_driver_sql("SELECT * FROM saved_vectors").first()
        if row is None:
            raise IndexMissing("no vectors are in pgvector")
        saved = EmbeddingSpace(row.name, row.revision, row.dim)
        if saved != space:
            raise EmbedderMismatch(f"the vectors are of {saved}, the embedder is {space}")
        self.complete()
        return Manifest(**asdict(space), generation=row.generation, token=row.token, scopes=())

    @property
    def _table(self) -> str:
        return f"pgvector_{int(self._dim)}"


def _text(vector: Vectors) -> str:
    return "[" + ",".join(f"{x:.7g}" for x in vector.tolist()) + "]"
