"""Translates filters into PostgreSQL's conditions over the documents table, as filter_sql.py does
into SQLite's.

`->` with a name finds a field of an object, and nothing in an array; JSONB compares by type and
value, so 1 equals 1.0, but neither true nor "1".
"""

from __future__ import annotations

import json
from typing import Any

from retriever.catalog.filter_conditions import COMPARISON, Condition, joined
from retriever.documents import DocFilter
from retriever.filters import FieldTest, Scalar


def conditions(doc_filter: DocFilter | None) -> Condition:
    """A WHERE condition and its values; for None the condition is always true."""
    if doc_filter is None:
        return "true", []
    condition, values = joined(doc_filter.where, _found)
    if doc_filter.named:
        part = doc_filter.named.casefold()
        condition = f"(strpos(folded_id, ?) > 0 OR strpos(folded_title, ?) > 0) AND {condition}"
        values = [part, part, *values]
    if doc_filter.doc_ids is not None:
        condition = f"doc_id = ANY(CAST(? AS text[])) AND {condition}"
        values = [list(doc_filter.doc_ids), *values]
    return condition, values


def _found(test: FieldTest, operator: str) -> Condition:
    """A condition, never NULL, that the field exists and its value passes the operator."""
    field = "fields" + " -> CAST(? AS text)" * len(test.path)
    condition, values = _passes(operator, test.operand)
    passes = f"(SELECT coalesce({condition}, false) FROM (SELECT {field} AS f) AS field)"
    # The condition's values come first, because it stands first.
    return passes, [*values, *test.path]


def _passes(operator: str, operand: Any) -> Condition:
    """A condition over the field's value `f`."""
    match operator:
        case "exists":
            return "f IS NOT NULL", []
        case "eq":
            return "f = CAST(? AS jsonb)", [_json(operand)]
        case "in":
            return "f = ANY(CAST(? AS jsonb[]))", [[_json(value) for value in operand]]
        case "contains":
            return (
                "jsonb_typeof(f) = 'array' AND f @> jsonb_build_array(CAST(? AS jsonb))",
                [_json(operand)],
            )
        case "prefix":
            return "jsonb_typeof(f) = 'string' AND starts_with(f #>> '{}', ?)", [operand]
    sign = COMPARISON[operator]
    if isinstance(operand, str):
        return (
            f"CASE jsonb_typeof(f) WHEN 'string' THEN (f #>> '{{}}') COLLATE \"C\" {sign} ? END",
            [operand],
        )
    return (
        f"CASE jsonb_typeof(f) WHEN 'number' THEN CAST(f AS numeric) {sign} CAST(? AS numeric) END",
        [_json(operand)],
    )


def _json(value: Scalar) -> str:
    return json.dumps(value)
