"""The chunks of the documents that match a filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sqlalchemy import Connection, bindparam, select

from retriever.catalog.filter_conditions import conditions
from retriever.catalog.tables import chunks, documents
from retriever.documents import DocFilter
from retriever.sql.expressions import Prepared, among


@dataclass(frozen=True)
class _Repeated:
    """A filter as a key of a cache: as text, because True equals 1."""

    text: str
    doc_filter: DocFilter = field(compare=False)


def chunks_matching(
    read: Connection, scope_id: int | None, doc_filter: DocFilter, readers: Sequence[str] | None
) -> list[int]:
    """Return the ids of all chunks of a scope's documents that match a filter."""
    repeated = _Repeated(repr(doc_filter), doc_filter)
    query = _chunk_ids(repeated, read.dialect.name, restricted=readers is not None)
    values = {} if readers is None else {"readers": readers}
    return [chunk_id for (chunk_id,) in query.rows(read, scope_id=scope_id, **values)]


@lru_cache(maxsize=256)  # requests repeat their filters
def _chunk_ids(repeated: _Repeated, dialect: str, *, restricted: bool) -> Prepared:
    matching = conditions(repeated.doc_filter, dialect)
    numbers = select(documents.c.document).where(
        documents.c.scope_id == bindparam("scope_id"), matching
    )
    if restricted:
        numbers = numbers.where(among(documents.c.readers, "readers"))
    return Prepared(select(chunks.c.chunk_id).where(chunks.c.document.in_(numbers)))
