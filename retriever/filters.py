"""Filters over metadata: a small typed language, parsed from JSON.

    {"lang": "en"}                                   equality, short for {"lang": {"eq": "en"}}
    {"year": {"gte": 2000, "lt": 2010}}              several tests of one field: all must hold
    {"author.name": {"prefix": "Ad"}}                a dotted path goes into nested objects
    {"or": [{"lang": "en"}, {"not": {"draft": true}}]}

    eq ne        string, number, boolean or null       gt gte lt lte   number or string
    in nin       a list of those                       prefix          string
    contains     a list has this element               exists          true or false

A value passes only a test of its own type: 1 equals 1.0, but neither true nor "1". Strings are
ordered by code point. `ne` and `nin` are the opposites of `eq` and `in`, so they hold where the
field is missing. A dot that is part of a name is written "\\.", a backslash "\\\\".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kvstitch.retriever.errors import InvalidQuery

Scalar = str | int | float | bool | None
Operator = Literal[
    "eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "prefix", "contains", "exists"
]
OPERATORS: tuple[str, ...] = get_args(Operator)

MAX_DEPTH = 8  # of and, or, not
MAX_TESTS = 64
MAX_VALUES = 1000  # in all lists together
MAX_STEPS = 8  # of one path
MAX_INTEGER = 2**63 - 1  # what SQLite stores exactly


@dataclass(frozen=True)
class FieldTest:
    path: tuple[str, ...]
    operator: Operator
    operand: Scalar | tuple[Scalar, ...]


@dataclass(frozen=True)
class And:
    """All parts hold; true if there are none."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Or:
    """At least one part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Not:
    """The part does not hold."""

    part: Filter


Filter = FieldTest | And | Or | Not
MATCH_ALL = And(())


def parse_filter(json: object) -> Filter:
    """Parse a filter from decoded JSON; `{}` matches everything."""
    return _Parser().parse(json, "filter", 0)


def as_elements(where: Filter) -> list[tuple[FieldTest, Filter]]:
    """Return the tests for equality in a filter, each with one that lists with such an element
    pass."""
    match where:
        case And(parts) | Or(parts):
            return [found for part in parts for found in as_elements(part)]
        case Not(part):
            return as_elements(part)
    if where.operator not in ("eq", "in"):
        return []
    values = where.operand if isinstance(where.operand, tuple) else (where.operand,)
    elements = tuple(FieldTest(where.path, "contains", value) for value in values)
    return [(where, Or(elements))]


class _Parser:
    def __init__(self) -> None:
        self._tests = 0
        self._values = 0

    def parse(self, json: object, at: str, depth: int) -> Filter:
        if not isinstance(json, Mapping):
            raise InvalidQuery(f"{at}: must be an object, not {_name(json)}")
        if depth > MAX_DEPTH:
            raise InvalidQuery(f"{at}: nested deeper than {MAX_DEPTH}")
        parts: list[Filter] = []
        for key, value in json.items():
            here = f"{at}.{key}"
            if not isinstance(key, str):
                raise InvalidQuery(f"{here}: names must be strings")
            if key in ("and", "or"):
                members = self._members(value, here, depth)
                parts.append(And(members) if key == "and" else Or(members))
            elif key == "not":
                parts.append(Not(self.parse(value, here, depth + 1)))
            else:
                parts += self._field(key, value, here)
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _members(self, json: object, at: str, depth: int) -> tuple[Filter, ...]:
        if not isinstance(json, list | tuple) or not json:
            raise InvalidQuery(f"{at}: must be a list of at least one filter")
        if len(json) > MAX_TESTS:
            raise InvalidQuery(f"{at}: more than {MAX_TESTS} filters")
        members = enumerate(json)
        return tuple(self.parse(part, f"{at}[{i}]", depth + 1) for i, part in members)

    def _field(self, key: str, value: object, at: str) -> list[Filter]:
        path = _path(key, at)
        if not isinstance(value, Mapping):
            return [self._test(path, "eq", value, at)]
        if not value:
            raise InvalidQuery(f"{at}: needs an operator: one of {', '.join(OPERATORS)}")
        return [self._test(path, name, operand, f"{at}.{name}") for name, operand in value.items()]

    def _test(self, path: tuple[str, ...], operator: Any, operand: object, at: str) -> FieldTest:
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise InvalidQuery(f"{at}: more than {MAX_TESTS} tests in one filter")
        match operator:
            case "eq" | "ne" | "contains":
                return FieldTest(path, operator, _scalar(operand, at))
            case "in" | "nin":
                return FieldTest(path, operator, self._scalars(operand, at))
            case "gt" | "gte" | "lt" | "lte":
                if operand is None or isinstance(operand, bool):
                    raise InvalidQuery(f"{at}: must be a number or a string, not {_name(operand)}")
                return FieldTest(path, operator, _scalar(operand, at))
            case "prefix" if isinstance(operand, str):
                return FieldTest(path, operator, _scalar(operand, at))
            case "exists" if isinstance(operand, bool):
                return FieldTest(path, operator, operand)
            case "prefix" | "exists":
                wanted = "a string" if operator == "prefix" else "true or false"
                raise InvalidQuery(f"{at}: must be {wanted}, not {_name(operand)}")
        raise InvalidQuery(f"{at}: there is no such operator; use one of {', '.join(OPERATORS)}")

    def _scalars(self, operand: object, at: str) -> tuple[Scalar, ...]:
        if not isinstance(operand, list | tuple):
            raise InvalidQuery(f"{at}: must be a list, not {_name(operand)}")
        self._values += len(operand)
        if self._values > MAX_VALUES:
            raise InvalidQuery(f"{at}: more than {MAX_VALUES} values in one filter")
        return tuple(_scalar(value, f"{at}[{i}]") for i, value in enumerate(operand))


def _path(key: str, at: str) -> tuple[str, ...]:
    _check_text(key, at)
    # Every match is one name; an escaped dot does not end it.
    names = re.findall(r"(?:^|\.)((?:\\.|[^.\\])*)", key, re.DOTALL)
    if sum(map(len, names)) + len(names) - 1 != len(key):
        raise InvalidQuery(f"{at}: a backslash must stand before a dot or a backslash")
    if not all(names) or len(names) > MAX_STEPS:
        raise InvalidQuery(f"{at}: a path is 1 to {MAX_STEPS} names with dots in between")
    return tuple(re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL) for name in names)


def _scalar(operand: object, at: str) -> Scalar:
    if isinstance(operand, str):
        _check_text(operand, at)
    elif isinstance(operand, int):
        if abs(operand) > MAX_INTEGER:
            raise InvalidQuery(f"{at}: integers go up to {MAX_INTEGER}")
    elif isinstance(operand, float):
        if not math.isfinite(operand):
            raise InvalidQuery(f"{at}: must be finite")
    elif operand is not None:
        raise InvalidQuery(f"{at}: must be a string, number, boolean or null, not {_name(operand)}")
    return operand


def _check_text(text: str, at: str) -> None:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidQuery(f"{at!r}: holds a NUL or a lone surrogate")


def _name(value: object) -> str:
    """The JSON word for a value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
    return type(value).__name__
