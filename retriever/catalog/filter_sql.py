"""Translates filters into SQL conditions over the documents table.

Fields are looked up name by name with json_each, because a JSON path cannot quote every name.
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
        return "1", []
    condition, values = _sql(doc_filter.where)
    if doc_filter.named:
        part = doc_filter.named.casefold()
        condition = f"(instr(casefold(doc_id), ?) OR instr(casefold(title), ?)) AND {condition}"
        values = [part, part, *values]
    if doc_filter.doc_ids is not None:
        condition = f"doc_id IN (SELECT value FROM json_each(?)) AND {condition}"
        values = [json.dumps(list(doc_filter.doc_ids)), *values]
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
            word, empty = (" AND ", "1") if isinstance(part, And) else (" OR ", "0")
            condition = word.join(condition for condition, _ in pieces) or empty
            return f"({condition})", [value for _, values in pieces for value in values]


def _test(test: FieldTest) -> tuple[str, list[Any]]:
    if (opposite := _OPPOSITE.get(test.operator)) is not None:
        condition, values = _found(test, opposite)
        return f"NOT {condition}", values
    if test.operator == "exists":
        condition, values = _found(test, "exists")
        return condition if test.operand else f"NOT {condition}", values
    return _found(test, test.operator)


def _found(test: FieldTest, operator: str) -> tuple[str, list[Any]]:
    """A condition that the field exists and its value passes the operator."""
    tables, where, values = [], [], []
    inside = "metadata"
    for step, name in enumerate(test.path):
        tables.append(f"json_each({inside}) AS f{step}")
        where.append(f"f{step}.key = ?")
        values.append(name)
        inside = f"CASE f{step}.type WHEN 'object' THEN f{step}.value ELSE '{{}}' END"
    last = f"f{len(test.path) - 1}"
    if operator == "contains":
        array = f"CASE {last}.type WHEN 'array' THEN {last}.value ELSE '[]' END"
        tables.append(f"json_each({array}) AS element")
        last = "element"
    condition, more = _passes(last, operator, test.operand)
    sources = " JOIN ".join(tables)
    condition = " AND ".join([*where, condition])
    return f"EXISTS (SELECT 1 FROM {sources} WHERE {condition})", [*values, *more]


def _passes(field: str, operator: str, operand: Any) -> tuple[str, list[Any]]:
    match operator:
        case "exists":
            return "1", []
        case "eq" | "contains":
            return _among(field, (operand,))
        case "in":
            return _among(field, operand)
        case "prefix":
            return f"({field}.type = 'text' AND substr({field}.value, 1, ?) = ?)", [
                len(operand),
                operand,
            ]
    types = "'text'" if isinstance(operand, str) else "'integer', 'real'"
    return f"({field}.type IN ({types}) AND {field}.value {_COMPARISON[operator]} ?)", [operand]


def _among(field: str, operands: tuple[Scalar, ...]) -> tuple[str, list[Any]]:
    """A condition that type and value equal one operand; in SQL, JSON true and 1 are both 1."""
    words = {None: "null", True: "true", False: "false"}
    types = {words[value] for value in operands if value is None or isinstance(value, bool)}
    texts = [value for value in operands if isinstance(value, str)]
    numbers = [
        value
        for value in operands
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    either = [f"{field}.type = '{name}'" for name in sorted(types)]
    for names, values in (("'text'", texts), ("'integer', 'real'", numbers)):
        if values:
            places = ", ".join("?" * len(values))
            either.append(f"({field}.type IN ({names}) AND {field}.value IN ({places}))")
    return f"({' OR '.join(either) or '0'})", [*texts, *numbers]
