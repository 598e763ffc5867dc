"""Translates filters into SQL conditions over the documents table.

Fields are looked up name by name with json_each, because a JSON path cannot quote every name.
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
        return "1", []
    condition, values = joined(doc_filter.where, _found)
    if doc_filter.named:
        part = doc_filter.named.casefold()
        condition = f"(instr(casefold(doc_id), ?) OR instr(casefold(title), ?)) AND {condition}"
        values = [part, part, *values]
    if doc_filter.doc_ids is not None:
        condition = f"doc_id IN (SELECT value FROM json_each(?)) AND {condition}"
        values = [json.dumps(list(doc_filter.doc_ids)), *values]
    return condition, values


def _found(test: FieldTest, operator: str) -> Condition:
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


def _passes(field: str, operator: str, operand: Any) -> Condition:
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
    return f"({field}.type IN ({types}) AND {field}.value {COMPARISON[operator]} ?)", [operand]


def _among(field: str, operands: tuple[Scalar, ...]) -> Condition:
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
