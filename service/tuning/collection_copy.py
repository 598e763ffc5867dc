"""Copies a collection out of PostgreSQL into a catalog file, with the vectors that it has there.

Nothing is written to the database: tuning chooses companions, which a shared catalog would keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retriever import Scope
from retriever.catalog.catalog import Catalog
from retriever.catalog.postgresql_database import SCHEMA, PostgresqlDatabase
from retriever.chunking import ChunkSpan
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.errors import CatalogError
from retriever.sql.postgresql import Postgresql
from service.errors import InvalidSetting

PAGE = 500


def copy_collection(url: str, scope: Scope, file: Path) -> None:
    """Make a catalog of this collection alone; an unknown one makes an empty catalog.

    A document that is replaced or deleted meanwhile may be left out.

    Args:
        url: of the database.
        scope: the tenant's collection.
        file: the new catalog; needs room for the collection's texts and vectors.

    Raises:
        InvalidSetting: the database cannot be read.
    """
    pool = Postgresql(url, SCHEMA, connections=2)
    source, target = Catalog(PostgresqlDatabase(pool)), Catalog(file)
    try:
        source.start()
        target.start()
        for space in source.spaces():
            _copy(source, target, scope, space)
    except CatalogError as error:
        raise InvalidSetting(f"database (KVSTITCH_DATABASE): {error}") from error
    finally:
        target.close()
        source.close()
        pool.close()


def _copy(source: Catalog, target: Catalog, scope: Scope, space: EmbeddingSpace) -> None:
    vectors: dict[int, Vectors] = {}
    for found, ids, rows in source.vectors(space):
        if found == scope:
            vectors |= zip(ids.tolist(), rows, strict=True)
    for doc_id in _names(source, scope):
        stored = source.get(doc_id, scope=scope)
        chunks = source.chunks_of(doc_id, scope=scope)
        if stored is None or not all(chunk.chunk_id in vectors for chunk in chunks):
            continue
        spans = [ChunkSpan(chunk.char_start, chunk.char_end, chunk.tokens) for chunk in chunks]
        of_chunks = np.array([vectors[chunk.chunk_id] for chunk in chunks], dtype=np.float32)
        target.upsert(
            stored.document,
            stored.info.revision,
            spans,
            of_chunks.reshape(len(spans), space.dim),
            space,
            scope=scope,
        )


def _names(source: Catalog, scope: Scope) -> Iterator[str]:
    cursor = None
    while True:
        page = source.page(PAGE, cursor, scope=scope)
        yield from (document.doc_id for document in page.documents)
        cursor = page.next_cursor
        if cursor is None:
            return
