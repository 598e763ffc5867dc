"""Makes the vectors of another embedder for all that is stored, while those there are answer.

They lie beside the others, in the order of their chunks, so a restart goes on behind the last one,
and what is stored meanwhile comes at the end. Once every chunk has one, all change places in one
transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, Select, func, select

from kvstitch.retriever.catalog import queries, storing
from kvstitch.retriever.catalog.tables import chunks, documents, next_vectors, vectors
from kvstitch.retriever.chunking import ChunkSpan
from kvstitch.retriever.documents import CatalogState
from kvstitch.retriever.embedders import Embedder, EmbeddingSpace, space_of
from kvstitch.retriever.ingest import EmbeddedDocument, embed_documents
from kvstitch.retriever.scope import DEFAULT_SCOPE
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.expressions import among

CHUNKS_RENEWED = 64  # at a time: some seconds
_LAST = select(func.coalesce(func.max(next_vectors.c.chunk_id), 0)).scalar_subquery()


class VectorRenewal:
    """What is left to be done until `embedder`, which was started, can answer."""

    def __init__(self, database: Database, embedder: Embedder) -> None:
        self._database = database
        self.embedder = embedder
        self.failure = ""  # why the last step failed

    def progress(self) -> tuple[int, int]:
        """Return how many chunks are done, and of how many."""
        with self._database.read() as read:
            done = read.scalar(select(func.count()).select_from(next_vectors)) or 0
            return done, done + (read.scalar(_left(func.count())) or 0)

    def step(self) -> bool:
        """Embed some chunks; False: all are. Raises EmbedderError, DatabaseError."""
        with self._database.read() as read:
            query = _left(chunks).order_by(chunks.c.chunk_id).limit(CHUNKS_RENEWED)
            rows = read.execute(query).all()
            texts = _texts(read, rows)
        if not rows:
            return False
        made = np.ascontiguousarray(embed_documents(self.embedder, texts), dtype="<f4")
        found = {row.chunk_id: vector.tobytes() for row, vector in zip(rows, made, strict=True)}
        with self._database.write() as write:
            space_id = storing.space_id(write, space_of(self.embedder))
            still = select(chunks.c.chunk_id).where(among(chunks.c.chunk_id, found))
            for i in write.scalars(still).all():
                row = {"chunk_id": i, "space_id": space_id, "vector": found[i]}
                write.execute(next_vectors.insert(), row)
        return True

    def finish(self) -> CatalogState | None:
        """Put the new vectors into the place of the old ones; None: some are missing yet."""
        with self._database.write() as write:
            if write.execute(_left(chunks.c.chunk_id).limit(1)).first() is not None:
                return None
            space_id = storing.space_id(write, space_of(self.embedder))
            write.execute(vectors.delete())
            write.execute(vectors.insert().from_select(vectors.c.keys(), select(next_vectors)))
            write.execute(next_vectors.delete())
            write.execute(documents.update().values(space_id=space_id))
            return storing.advance(write, DEFAULT_SCOPE, [], [])


def forget_others(database: Database, space: EmbeddingSpace) -> None:
    """Drop the vectors that wait for another embedder than that of a space."""
    with database.write() as write:
        others = next_vectors.c.space_id != storing.space_id(write, space)
        write.execute(next_vectors.delete().where(others))


def _left(*columns: Any) -> Select[Any]:
    """Select of the chunks that have no new vector: their ids are higher."""
    return select(*columns).select_from(chunks).where(chunks.c.chunk_id > _LAST)


def _texts(read: Connection, rows: Sequence[Row[Any]]) -> list[str]:
    """Return what is embedded of chunks, as when they were stored."""
    texts: list[str] = []
    for number, own in groupby(rows, lambda row: row.document):
        named = documents.c.document == number
        title, text = read.execute(select(documents.c.title, documents.c.text).where(named)).one()
        whole = EmbeddedDocument("", text, title, marks=tuple(queries.marks_of(read, number)))
        for row in own:
            lead = row.text[: len(row.text) - (row.char_end - row.char_start)]
            whole.spans.append(ChunkSpan(row.char_start, row.char_end, row.tokens, lead))
        texts += whole.texts()
    return texts
