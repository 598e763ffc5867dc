"""Translates filters into PostgreSQL's conditions over the documents table, as filter_sql.py does
into SQLite's.

`->` with a name finds a field of an object, and nothing in an array; JSONB compares by type and
value, so 1 equals 1.0, but neither true nor "1".
"""

from __future__ import annotations

import json
from typing import Any

from retriever.documents import DocFilter
from retriever.filters import And, FieldTest, Filter, Not, Or, Scalar

_COMPARISON = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_OPPOSITE = {"ne": "eq", "nin": "in"}


def conditions(doc_filter: DocFilter | None) -> tuple[str, list[Any]]:
    """A WHERE condition and its values; for None the condition is always true."""
    if doc_filter is None:
        return "true", []
    condition, values = _sql(doc_filter.where)
    if doc_filter.named:
        part = doc_filter.named.casefold()
        condition = f"(strpos(folded_id, ?) > 0 OR strpos(folded_title, ?) > 0) AND {condition}"
        values = [part, part, *values]
    if doc_filter.doc_ids is not None:
        condition = f"doc_id = ANY(CAST(? AS text[])) AND {condition}"
        values = [list(doc_filter.doc_ids), *values]
    return condition, values


def _sql(part: Filter) -> tuple[str, list[Any]]:
    match part:
        case FieldTest():
            return _test(part)
        case Not():
            condition, values = _sql(part.part)
            return f"NOT {condition}", values
        case And() | Or():
            pieces = [_sql(inner) for inner in part.parts]
            word, empty = (" AND ", "true") if isinstance(part, And) else (" OR ", "false")
            condition = word.join(condition for condition, _ in pieces) or empty
            return f"({condition})", [value for _, values in pieces for value in values]


def _test(test: FieldTest) -> tuple[str, list[Any]]:
    if (opposite := _OPPOSITE.get(test.operator)) is not None:
        condition, values = _found(test, opposite)
        return f"NOT {condition}", values
    condition, values = _found(test, test.operator)
    if test.operator == "exists" and not test.operand:
        condition = f"NOT {condition}"
    return condition, values


def _found(test: FieldTest, operator: str) -> tuple[str, list[Any]]:
    """A condition, never NULL, that the field exists and its value passes the operator."""
    field = "fields" + " -> CAST(? AS text)" * len(test.path)
    condition, values = _passes(operator, test.operand)
    passes = f"(SELECT coalesce({condition}, false) FROM (SELECT {field} AS f) AS field)"
    # The condition's values come first, because it stands first.
    return passes, [*values, *test.path]


def _passes(operator: str, operand: Any) -> tuple[str, list[Any]]:
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
    sign = _COMPARISON[operator]
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
