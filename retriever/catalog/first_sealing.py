"""Seals what a catalog has in the clear: rows first, document by document, then the words."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Row, select

from encryption.values import is_sealed, is_sealed_text
from retriever.catalog.catalog import Catalog
from retriever.catalog.tables import chunks, documents, marks, scopes, vectors
from retriever.sealing import Sealing

_DOCUMENT = select(
    scopes.c.tenant, *documents.c["document", "doc_id", "revision", "title", "metadata", "text"]
).join_from(documents, scopes)  # fmt: skip


def seal_catalog(catalog: Catalog) -> int:
    """Seal all texts, vectors and words that are in the clear, and overwrite what was.

    What is sealed already is left alone, so after an interruption it is called again.

    Args:
        catalog: Started, with keys; nobody else may use it.

    Returns:
        How many documents had something in the clear.
    """
    with catalog.database.read() as read:
        numbers = list(read.scalars(select(documents.c.document)))
    sealed = 0
    for number in numbers:
        with catalog.database.write() as write:
            row = write.execute(_DOCUMENT.where(documents.c.document == number)).one()
            sealed += _seal_document(write, row)
    catalog.renew_words()
    catalog.purge()
    return sealed


def _seal_document(write: Connection, row: Row[Any]) -> bool:
    """Seal one document's rows; return whether anything was in the clear."""
    sealing, tenant, named = Sealing.of(write), row.tenant, (row.doc_id, row.revision)
    changed: dict[str, str] = {
        name: sealing.sealed(tenant, getattr(row, name), name, *named)
        for name in ("title", "text")
        if _is_clear(getattr(row, name))
    }
    if not row.metadata.startswith('"'):  # see queries.insert
        changed["metadata"] = json.dumps(sealing.sealed(tenant, row.metadata, "metadata", *named))
    if changed:
        own = documents.c.document == row.document
        write.execute(documents.update().where(own).values(changed))
    found = [bool(changed)]
    for mark in write.execute(select(marks).where(marks.c.document == row.document)).all():
        if _is_clear(mark.label):
            own = (
                (marks.c.document == mark.document)
                & (marks.c.is_heading == mark.is_heading)
                & (marks.c.start == mark.start)
            )
            label = sealing.sealed(tenant, mark.label, "label", *named)
            write.execute(marks.update().where(own).values(label=label))
            found.append(True)
    pieces = select(*chunks.c["chunk_id", "ordinal", "text"], vectors.c.vector)
    pieces = pieces.join_from(chunks, vectors, isouter=True)
    for piece in write.execute(pieces.where(chunks.c.document == row.document)).all():
        if _is_clear(piece.text):
            text = sealing.sealed(tenant, piece.text, "chunk", *named, piece.ordinal)
            own = chunks.c.chunk_id == piece.chunk_id
            write.execute(chunks.update().where(own).values(text=text))
            found.append(True)
        if piece.vector is not None and not is_sealed(piece.vector):
            vector = sealing.sealed_vector(tenant, piece.vector, piece.chunk_id)
            own = vectors.c.chunk_id == piece.chunk_id
            write.execute(vectors.update().where(own).values(vector=vector))
            found.append(True)
    return any(found)


def _is_clear(text: str) -> bool:
    return bool(text) and not is_sealed_text(text)
