"""DocFilter to SQL over the documents table. Knows no connection."""

from __future__ import annotations

import json
from typing import Any

from retriever.documents import DocFilter
from retriever.errors import InvalidQuery

# JSON true and 1 are both 1 in SQL, so the type is compared as well.
_PAIR = (
    "EXISTS (SELECT 1 FROM json_each(metadata) WHERE key = ? AND type IN ({types}) AND value IS ?)"
)


def conditions(doc_filter: DocFilter | None) -> tuple[str, list[Any]]:
    """A WHERE condition and its values; true for None. Raises InvalidQuery."""
    parts = ["1"]
    values: list[Any] = []
    if doc_filter is None:
        return "1", values
    if doc_filter.doc_ids is not None:
        parts.append("doc_id IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(doc_filter.doc_ids)))
    for key, value in doc_filter.metadata.items():
        parts.append(_PAIR.format(types=_types(key, value)))
        values += [key, value]
    return " AND ".join(parts), values


def _types(key: str, value: object) -> str:
    match value:
        case None:
            return "'null'"
        case bool():
            return "'true'" if value else "'false'"
        case int() | float():
            return "'integer', 'real'"
        case str():
            return "'text'"
    raise InvalidQuery(f"the filter on {key!r} must be a string, number, boolean or null")
