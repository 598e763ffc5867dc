"""Merges into one the schemas of `allOf`, and of what stands beside a `$ref` or an `anyOf`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_OTHER_NAMES = ("additionalProperties", "unevaluatedProperties")


def merge(first: Schema, second: Schema, unheld: Callable[[str], None]) -> Schema:
    """Return a schema that matches what both match. What it cannot join stays below `allOf`."""
    first, second = _each_knows_the_names(first, second, unheld)
    out = dict(first)
    apart: list[Schema] = list(out.pop("allOf", []))
    for key, theirs in second.items():
        ours = out.get(key)
        if key == "allOf":
            apart += theirs
        elif ours is None or ours == theirs:
            out[key] = theirs
        elif key in _LARGER:
            out[key] = max(ours, theirs)
        elif key in _SMALLER:
            out[key] = min(ours, theirs)
        elif key == "type":
            out[key] = _common_types(ours, theirs)
        elif key == "enum":
            out[key] = [value for value in ours if value in theirs]
        elif key == "required":
            out[key] = list(dict.fromkeys([*ours, *theirs]))
        elif key in ("properties", "patternProperties", "dependentRequired", "dependentSchemas"):
            out[key] = _by_name(ours, theirs)
        elif key in (*_OTHER_NAMES, "items", "propertyNames"):
            out[key] = both(ours, theirs)
        elif key == "uniqueItems":
            out[key] = True
        else:
            apart.append({key: theirs})
    return {**out, "allOf": apart} if apart else out


def both(first: Any, second: Any) -> Any:
    """Return a schema of what matches two, of which either may be true or false."""
    if first is False or second is False:
        return False
    if first is True or first == {}:
        return second
    if second is True or second == {}:
        return first
    return first if first == second else {"allOf": [first, second]}


def _by_name(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    out = dict(ours)
    for name, value in theirs.items():
        if name not in out:
            out[name] = value
        elif isinstance(value, list):
            out[name] = [*out[name], *value]
        else:
            out[name] = both(out[name], value)
    return out


def _common_types(ours: Any, theirs: Any) -> list[str]:
    first, second = as_list(ours), as_list(theirs)
    common = [kind for kind in first if kind in second]
    if "integer" not in common and {"integer", "number"} <= {*first, *second}:
        common.append("integer")
    return common


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _each_knows_the_names(
    first: Schema, second: Schema, unheld: Callable[[str], None]
) -> tuple[Schema, Schema]:
    """Apply what each says of other properties to those that only the other one lists."""
    required = {*first.get("required", ()), *second.get("required", ())}
    made = []
    for one, other in ((first, second), (second, first)):
        rule = one.get("additionalProperties", True)
        listed = one.get("properties", {})
        names = [name for name in other.get("properties", {}) if name not in listed]
        if not names or rule is True or rule == {} or "patternProperties" in one:
            made.append(one)
            continue
        if rule is False and required.intersection(names):
            unheld("additionalProperties beside properties of another branch of allOf")
            rule = True
        ruled = {name: rule for name in names if rule is not True}
        made.append({**one, "properties": {**listed, **ruled}} if ruled else one)
    return made[0], made[1]
