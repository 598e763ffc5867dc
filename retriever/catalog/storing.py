"""Statements that write: documents with all that belongs to them, scopes, and the count of changes.

The caller holds a transaction on the given connection.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, select

from kvstitch.retriever.catalog.queries import chunks_of, current_state, find_scope, words_of
from kvstitch.retriever.catalog.tables import (
    changes,
    chunks,
    documents,
    marks,
    scopes,
    spaces,
    state,
    vectors,
)
from kvstitch.retriever.chunking import ChunkSpan
from kvstitch.retriever.documents import CatalogState, Document, IngestResult, canonical_metadata
from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import DocumentHidden, DocumentKept
from kvstitch.retriever.index.full_text import ChunkWords, FullText
from kvstitch.retriever.scope import EVERYBODY, Scope, View
from kvstitch.retriever.sql.expressions import among

CHANGES_KEPT = 100_000  # an index that is further behind is rebuilt
_PRUNE_EVERY = 1000
NAMED = (
    "{0} of {1!r} may be those that it has, and your own groups, not {2}: you belong to {3!r}; "
    "name others, or use another key"
)


@dataclass(frozen=True)
class CarriedOver:
    """What a document keeps when a new revision replaces it."""

    created: float
    pinned: bool = False
    writers: str = ""


def insert(
    write: Connection,
    scope_id: int,
    document: Document,
    *,
    revision: str,
    kept: CarriedOver,
    spans: Sequence[ChunkSpan],
    embedded: Vectors,
    space_id: int,
    words: FullText,
) -> None:
    """Store a new document with its chunks, vectors and index words."""
    row = {
        "scope_id": scope_id, "doc_id": document.doc_id, "revision": revision,
        "space_id": space_id, "created": kept.created, "updated": time.time(),
        "num_chars": len(document.text), "pinned": int(kept.pinned), "title": document.title,
        "metadata": canonical_metadata(document.metadata), "text": document.text,
        "readers": document.readers, "writers": kept.writers,
    }  # fmt: skip
    if write.dialect.name == "postgresql":
        # Folded here: what PostgreSQL folds depends on its locale.
        row |= {"folded_id": document.doc_id.casefold(), "folded_title": document.title.casefold()}
    number = write.scalar(documents.insert().returning(documents.c.document), row)
    # Of several marks at a place the last one counts.
    found = {(m.kind == "heading", m.start): m for m in document.marks}
    if found:
        write.execute(
            marks.insert(),
            [
                {"document": number, "is_heading": int(is_heading), "start": start,
                 "kind": mark.kind, "label": mark.label}
                for (is_heading, start), mark in found.items()
            ],
        )  # fmt: skip
    if not spans:
        words.add(write, scope_id, [])  # a search asks for the scope's words, though it has none
        return
    pieces: list[dict[str, Any]] = [
        {"document": number, "ordinal": ordinal, "char_start": span.start, "char_end": span.end,
         "tokens": span.tokens, "text": span.text(document.text)}
        for ordinal, span in enumerate(spans)
    ]  # fmt: skip
    added = chunks.insert().returning(chunks.c.chunk_id, sort_by_parameter_order=True)
    chunk_ids = write.scalars(added, pieces).all()
    rows = np.ascontiguousarray(embedded, dtype="<f4")
    write.execute(
        vectors.insert(),
        [
            {"chunk_id": chunk_id, "space_id": space_id, "vector": row.tobytes()}
            for chunk_id, row in zip(chunk_ids, rows, strict=True)
        ],
    )
    indexed: list[ChunkWords] = [
        (chunk_id, document.title, str(piece["text"]))
        for chunk_id, piece in zip(chunk_ids, pieces, strict=True)
    ]
    words.add(write, scope_id, indexed)


def replaced(
    write: Connection, scope_id: int | None, document: Document, scope: Scope
) -> tuple[Row[Any] | None, str]:
    """Return the row that a document replaces, and the writers that it gets.

    Raises DocumentHidden if the scope's view does not show what is there, DocumentKept if its pen
    may not change that, or not so.
    """
    name, view, pen = document.doc_id, scope.view, scope.pen
    columns = "document", "revision", "created", "pinned", "readers", "writers"
    named = documents.c.scope_id == scope_id, documents.c.doc_id == name
    had = write.execute(select(*documents.c[columns]).where(*named)).one_or_none()
    if had is not None and not view.shows(had.readers):
        raise DocumentHidden(
            f"the name {name!r} is taken by a document that you may not read: choose another doc_id"
        )
    if had is not None and not pen.changes(had.writers):
        raise DocumentKept(
            f"you may read the document {name!r} and not change it: ask one of its writers, or "
            "choose another doc_id"
        )
    there = had.writers if had is not None else pen.writers
    writers = there if document.writers is None else document.writers
    if not view.may_give(document.readers, had.readers if had is not None else EVERYBODY):
        raise DocumentKept(NAMED.format("readers", name, document.readers, view.name))
    if not pen.may_give(writers, there):
        raise DocumentKept(NAMED.format("writers", name, writers, View(pen.groups).name))
    if had is not None and not pen.may_take(
        (document.readers, writers), (had.readers, had.writers)
    ):
        raise DocumentKept(
            f"{name!r} would lose readers or writers, which needs the scope 'share': name those "
            "that it has"
        )
    return had, writers


def unchanged(write: Connection, scope_id: int | None, doc_id: str) -> IngestResult:
    """What is done of a document that stays as it is."""
    stored = chunks_of(write, scope_id, doc_id)
    return IngestResult(doc_id, "unchanged", stored, state=current_state(write))


def remove(write: Connection, scope_id: int, numbers: Sequence[int], words: FullText) -> list[int]:
    """Remove documents by number, with everything stored for them; return their chunk ids."""
    rows = words_of(write, documents.c.document, numbers)
    words.remove(write, scope_id, rows)
    write.execute(documents.delete().where(among(documents.c.document, numbers)))
    return sorted(chunk_id for chunk_id, *_ in rows)


def make_scope(write: Connection, scope: Scope) -> int:
    """Return the number of a scope, which is created if it does not exist."""
    if (found := find_scope(write, scope)) is not None:
        return found
    values = {"tenant": scope.tenant, "collection": scope.collection}
    return int(write.execute(scopes.insert().returning(scopes.c.scope_id), values).scalar_one())


def drop_if_empty(write: Connection, scope_id: int, words: FullText) -> None:
    """Remove a scope without documents, so that not even the tenant's name stays."""
    left = select(documents.c.document).where(documents.c.scope_id == scope_id).limit(1)
    if write.execute(left).first() is None:
        words.drop(write, scope_id)
        write.execute(scopes.delete().where(scopes.c.scope_id == scope_id))


def space_id(write: Connection, space: EmbeddingSpace) -> int:
    """Return the number of an embedding space, which is created if it does not exist."""
    found = write.scalar(select(spaces.c.space_id).filter_by(**asdict(space)))
    if found is None:
        found = write.scalar(spaces.insert().returning(spaces.c.space_id), asdict(space))
    return int(found)


def advance(
    write: Connection, scope: Scope, removed: Sequence[int], added: Sequence[int]
) -> CatalogState:
    """Count a change, and log it where other processes follow it; return the new state."""
    token = secrets.token_hex(16)
    write.execute(state.update().values(generation=state.c.generation + 1, token=token))
    new = current_state(write)
    if write.dialect.name == "postgresql":
        row = asdict(new) | {"tenant": scope.tenant, "collection": scope.collection,
                             "removed": list(removed), "added": list(added)}  # fmt: skip
        write.execute(changes.insert(), row)
        if new.generation % _PRUNE_EVERY == 0:
            old = changes.c.generation < new.generation - CHANGES_KEPT
            write.execute(changes.delete().where(old))
    return new
