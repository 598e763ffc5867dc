"""Translates filters into conditions over the documents table, alike for SQLite and PostgreSQL.

A field is found name by name, because a JSON path cannot quote every name: `->` finds a field of an
object and nothing in an array, and SQLite's json_each is told to look into objects only. PostgreSQL
compares JSONB by type and value, so 1 equals 1.0, but neither true nor "1"; in SQLite, where JSON's
true and 1 are both 1, the type is compared, too.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Numeric,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    exists,
    false,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    true,
)

from kvstitch.retriever.catalog.tables import chunks, documents
from kvstitch.retriever.documents import DocFilter
from kvstitch.retriever.filters import And, FieldTest, Filter, Not, Or, Scalar
from kvstitch.retriever.sql.expressions import Jsonb, Prepared, among

Condition = ColumnElement[bool]
_Found = Callable[[FieldTest, str], Condition]

_COMPARISON = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
# Opposites of other operators: they also hold where the field is missing.
_OPPOSITES = {"ne": "eq", "nin": "in"}


def conditions(doc_filter: DocFilter | None, dialect: str) -> Condition:
    """Return a condition over `documents`; for None it is always true."""
    if doc_filter is None:
        return true()
    postgresql = dialect == "postgresql"
    parts = [_join(doc_filter.where, _in_postgresql if postgresql else _in_sqlite)]
    if doc_filter.named:
        part = doc_filter.named.casefold()
        if postgresql:
            names = documents.c["folded_id", "folded_title"]
            parts.append(or_(*(func.strpos(name, part) > 0 for name in names)))
        else:
            names = documents.c["doc_id", "title"]
            parts.append(or_(*(func.instr(func.casefold(name), part) > 0 for name in names)))
    if doc_filter.doc_ids is not None:
        parts.append(among(documents.c.doc_id, doc_filter.doc_ids))
    return and_(*parts)


def _join(where: Filter, found: _Found) -> Condition:
    match where:
        case And(parts):
            return and_(true(), *(_join(part, found) for part in parts))
        case Or(parts):
            return or_(false(), *(_join(part, found) for part in parts))
        case Not(part):
            return not_(_join(part, found))
    opposite = _OPPOSITES.get(where.operator)
    if where.operator == "exists" and not where.operand:
        opposite = "exists"
    return not_(found(where, opposite)) if opposite else found(where, where.operator)


def _in_postgresql(test: FieldTest, op: str) -> Condition:
    """Return a condition, never NULL, that the field exists and its value passes the operator."""
    field: ColumnElement[Any] = documents.c.fields
    for name in test.path:
        field = field.op("->", return_type=Jsonb())(cast(name, Text))
    text = field.op("#>>", return_type=Text())(literal_column("'{}'"))
    operand: Any = test.operand
    kind = func.jsonb_typeof(field)
    passes: ColumnElement[Any]
    match op:
        case "exists":
            return field.is_not(None)
        case "eq":
            passes = field == _jsonb(operand)
        case "in":
            values = [json.dumps(value) for value in operand]
            passes = field == any_(cast(cast(values, ARRAY(Text)), ARRAY(Jsonb)))
        case "contains":
            passes = and_(kind == "array", field.op("@>")(func.jsonb_build_array(_jsonb(operand))))
        case "prefix":
            passes = and_(kind == "string", func.starts_with(text, operand))
        case _ if isinstance(operand, str):
            passes = case((kind == "string", _COMPARISON[op](text.collate("C"), operand)))
        case _:
            number = cast(literal(json.dumps(operand), Text), Numeric)
            passes = case((kind == "number", _COMPARISON[op](cast(field, Numeric), number)))
    return func.coalesce(passes, false())


def _jsonb(value: Scalar) -> ColumnElement[Any]:
    return cast(literal(json.dumps(value), Text), Jsonb)


def _in_sqlite(test: FieldTest, op: str) -> Condition:
    """Return a condition that the field exists and its value passes the operator."""
    where: list[Condition] = []
    fields: list[Any] = []
    inside: ColumnElement[Any] = documents.c.metadata
    for step, name in enumerate(test.path):
        field = _json_each(inside, f"f{step}")
        fields.append(field)
        where.append(field.c.key == name)
        inside = case((field.c.type == "object", field.c.value), else_=literal("{}"))
    if op == "contains":
        array = case((field.c.type == "array", field.c.value), else_=literal("[]"))
        field = _json_each(array, "element")
        fields.append(field)
    kind, value = field.c.type, field.c.value
    operand: Any = test.operand
    passes: Condition
    match op:
        case "exists":
            passes = true()
        case "eq" | "contains":
            passes = _is_one_of(kind, value, (operand,))
        case "in":
            passes = _is_one_of(kind, value, operand)
        case "prefix":
            passes = and_(kind == "text", func.substr(value, 1, len(operand)) == operand)
        case _:
            typed = kind == "text" if isinstance(operand, str) else _is_number(kind)
            passes = and_(typed, _COMPARISON[op](value, operand))
    found = select(literal(1)).select_from(*fields).where(*where, passes)
    return exists(found.correlate(documents))


def _json_each(json_text: ColumnElement[Any], name: str) -> Any:
    return func.json_each(json_text).table_valued(
        "key", "value", "type", name=name, joins_implicitly=True
    )


def _is_one_of(kind: Any, value: Any, operands: Any) -> Condition:
    words = {None: "null", True: "true", False: "false"}
    named = {words[each] for each in operands if each is None or isinstance(each, bool)}
    texts = [each for each in operands if isinstance(each, str)]
    numbers = [
        each for each in operands if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    return or_(
        false(),
        *(kind == name for name in sorted(named)),
        *([and_(kind == "text", among(value, texts))] if texts else []),
        *([and_(_is_number(kind), among(value, numbers))] if numbers else []),
    )


def _is_number(kind: Any) -> Condition:
    return or_(kind == "integer", kind == "real")


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
