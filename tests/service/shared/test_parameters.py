"""parameters.check: whatever a request may hold, the answer is a typed value or an InvalidRequest
that names the field and what is accepted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.parameters import check, parameter, schema_of


@dataclass(frozen=True)
class Everything:
    """One field of every kind."""

    share: float = parameter(0.15, "between two ends", ge=0, le=1)
    above: float = parameter(1.0, "one end", ge=-2.5)
    below: float = parameter(1.0, "the other end", le=10)
    free: float = parameter(0.5, "no end")
    count: int = parameter(7, "whole", ge=1, le=99)
    floor: int = parameter(7, "whole, one end", ge=1)
    switch: bool = parameter(False, "yes or no")
    metric: str = parameter("V", "a choice", choices=("V", "K"))
    name: str = parameter("x", "free text")
    chosen: float = parameter(0.15, "or left to the worker", ge=0, le=1, auto=True)
    hidden: int = dataclasses.field(default=3)


SCHEMA = schema_of(Everything)


def checked(**values: Any) -> dict[str, Any]:
    return check(SCHEMA, values, where="fusion")


def test_schema_holds_every_declared_field() -> None:
    """Type, default and explanation, and only the bounds that were given; no other fields."""
    assert "hidden" not in SCHEMA
    assert SCHEMA["share"] == {
        "type": "number",
        "default": 0.15,
        "doc": "between two ends",
        "ge": 0,
        "le": 1,
    }
    assert "le" not in SCHEMA["above"] and "ge" not in SCHEMA["below"]
    assert SCHEMA["metric"]["choices"] == ("V", "K")
    assert [SCHEMA[n]["type"] for n in ("count", "switch", "name")] == [
        "integer",
        "boolean",
        "string",
    ]


def test_defaults_are_filled_in() -> None:
    assert Everything(**checked()) == Everything()
    assert checked(count=5) == {**checked(), "count": 5}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("share", 0, 0.0),
        ("share", 1, 1.0),
        ("share", 0.5, 0.5),
        ("above", -2.5, -2.5),
        ("above", 1e300, 1e300),
        ("below", -1e300, -1e300),
        ("free", -3, -3.0),
        ("count", 1, 1),
        ("count", 99, 99),
        ("count", 12.0, 12),  # JSON writers that know only one kind of number
        ("floor", 10**12, 10**12),
        ("switch", True, True),
        ("metric", "K", "K"),
        ("name", "", ""),
    ],
)
def test_accepted(name: str, value: Any, expected: Any) -> None:
    """Ends included; numbers come out as the field's own type."""
    got = checked(**{name: value})[name]
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        *(("share", wrong, "a number from 0 to 1") for wrong in (
            -0.001, 1.001, float("nan"), float("inf"), True, "0.5", None, [0.5], {"value": 1},
            10**400, -(10**400))),
        ("above", -2.6, "a number of at least -2.5"),
        ("below", 10.5, "a number of at most 10"),
        ("free", float("-inf"), "a number"),
        ("free", False, "a number"),
        *(("count", wrong, "an integer from 1 to 99") for wrong in (
            0, 100, 1.5, True, float("nan"), float("inf"), 10**400)),
        *(("floor", wrong, "an integer of at least 1") for wrong in (0, 10**400, 1e308, 10**30)),
        *(("switch", wrong, "true or false") for wrong in (1, "true", None, 10**400)),
        *(("metric", wrong, "one of V, K") for wrong in ("k", 1, None, ["V"], 10**400)),
        *(("name", wrong, "a string") for wrong in (5, None)),
    ],
)  # fmt: skip
def test_refused(name: str, value: Any, accepted: str) -> None:
    """The message names the field with its prefix, what is accepted, and what was given."""
    with pytest.raises(InvalidRequest) as error:
        checked(**{name: value})
    assert error.value.field == f"fusion.{name}"
    assert error.value.message == f"fusion.{name} must be {accepted}, not {value!r}"
    assert error.value.status == 422


def test_large_integers_are_not_rounded() -> None:
    """2^53 + 1 is no float."""
    assert checked(floor=2**53 + 1)["floor"] == 2**53 + 1


@pytest.mark.parametrize("name", ["hidden", "Share", "share ", "", "__class__"])
def test_unknown_names(name: str) -> None:
    """Named, with the names there are; a field that is no parameter is as unknown as any."""
    with pytest.raises(InvalidRequest) as error:
        checked(**{name: 1})
    assert error.value.field == f"fusion.{name}"
    for known in ("share", "count", "metric"):
        assert known in error.value.message
    assert "hidden," not in error.value.message.split(":")[1]


def test_unknown_name_of_a_method_without_parameters() -> None:
    with pytest.raises(InvalidRequest, match=r"eviction\.x .* its parameters are: none"):
        check({}, {"x": 1}, where="eviction")


def test_input_is_not_changed() -> None:
    values = {"count": 4.0}
    check(SCHEMA, values, where="fusion")
    assert values == {"count": 4.0} and type(values["count"]) is float


def test_auto_is_taken_where_it_is_offered_and_nowhere_else() -> None:
    assert SCHEMA["chosen"]["auto"] is True and "auto" not in SCHEMA["share"]
    assert checked(chosen="auto")["chosen"] == "auto"
    assert checked(chosen=0.5)["chosen"] == 0.5
    with pytest.raises(InvalidRequest, match="a number from 0 to 1, not 'auto'"):
        checked(share="auto")
    with pytest.raises(InvalidRequest, match='a number from 0 to 1 or "auto"'):
        checked(chosen="automatic")
