"""Filters over texts that are sealed: the database cannot read them, so they are opened here.

Every document of the scope is opened for a filter of metadata or names: some 15 µs each.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import ColumnElement, Connection, false, select

from retriever.catalog.filter_conditions import conditions
from retriever.catalog.queries import opened_metadata, opened_title
from retriever.catalog.tables import documents
from retriever.documents import DocFilter
from retriever.filters import MATCH_ALL, holds
from retriever.sealing import Sealing
from retriever.sql.expressions import among

_COLUMNS = documents.c["document", "doc_id", "revision", "title", "metadata"]


def reads_texts(doc_filter: DocFilter) -> bool:
    """Return whether a filter asks for more than documents by their ids."""
    return doc_filter.where != MATCH_ALL or bool(doc_filter.named)


def allowed(
    read: Connection, scope_id: int | None, doc_filter: DocFilter | None
) -> ColumnElement[bool]:
    """Return a condition over `documents` of a scope that those meet that pass a filter."""
    sealing = Sealing.of(read)
    if not sealing.on or doc_filter is None or not reads_texts(doc_filter):
        return conditions(doc_filter, read.dialect.name)
    named = conditions(DocFilter(doc_filter.doc_ids), read.dialect.name)
    query = select(*_COLUMNS).where(documents.c.scope_id == scope_id, named)
    found = [row.document for row in read.execute(query) if _passes(row, doc_filter, sealing)]
    return among(documents.c.document, found) if found else false()


def _passes(row: Any, doc_filter: DocFilter, sealing: Sealing) -> bool:
    part = doc_filter.named.casefold()
    names = (row.doc_id, opened_title(sealing, row.title, row.doc_id, row.revision) if part else "")
    if not any(part in name.casefold() for name in names):
        return False
    if doc_filter.where == MATCH_ALL:
        return True
    metadata = opened_metadata(sealing, row.metadata, row.doc_id, row.revision)
    return holds(doc_filter.where, json.loads(metadata))
