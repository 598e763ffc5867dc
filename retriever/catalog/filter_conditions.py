"""The part of a filter's translation into SQL that is the same for both databases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retriever.filters import And, FieldTest, Filter, Not, Or

Condition = tuple[str, list[Any]]
"""A condition in SQL, and its values in the order of its places."""

COMPARISON = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_OPPOSITE = {"ne": "eq", "nin": "in"}


def joined(part: Filter, found: Callable[[FieldTest, str], Condition]) -> Condition:
    """The condition of a filter.

    Args:
        part: the filter.
        found: the condition, never NULL, that the test's field exists and its value passes this
            operator: any but `ne` and `nin`.
    """
    match part:
        case FieldTest():
            return _test(part, found)
        case Not():
            condition, values = joined(part.part, found)
            return f"NOT {condition}", values
        case And() | Or():
            pieces = [joined(inner, found) for inner in part.parts]
            word, empty = (" AND ", "true") if isinstance(part, And) else (" OR ", "false")
            condition = word.join(condition for condition, _ in pieces) or empty
            return f"({condition})", [value for _, values in pieces for value in values]


def _test(test: FieldTest, found: Callable[[FieldTest, str], Condition]) -> Condition:
    if (opposite := _OPPOSITE.get(test.operator)) is not None:
        condition, values = found(test, opposite)
        return f"NOT {condition}", values
    condition, values = found(test, test.operator)
    if test.operator == "exists" and not test.operand:
        condition = f"NOT {condition}"
    return condition, values
