"""Schemas beside one another: those of `allOf` merged, and whether alternatives exclude others."""

from collections.abc import Callable
from typing import Any

_ALL = {"null", "boolean", "number", "string", "array", "object"}


def distinct(first: Any, second: Any) -> bool:
    """Return whether no value that `first` allows matches `second`, nor the other way round."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return first is False or second is False
    if "anyOf" in first:
        return all(distinct(each, second) for each in first["anyOf"])
    if "anyOf" in second:
        return all(distinct(first, each) for each in second["anyOf"])
    if not _types(first) & _types(second):
        return True
    if (ours := _values(first)) is not None and (theirs := _values(second)) is not None:
        return not any(value in theirs for value in ours)
    if not _types(first) == _types(second) == {"object"}:
        return False
    listed, others = first.get("properties", {}), second.get("properties", {})
    common = {*first.get("required", ())} & {*second.get("required", ())}
    if any(
        distinct(listed[name], others[name]) for name in common if name in listed and name in others
    ):
        return True
    return _lacks(first, second) and _lacks(second, first)


Schema = dict[str, Any]


def _lacks(one: Schema, other: Schema) -> bool:
    """Whether an object of `one` cannot have all that `other` requires."""
    closed = one.get("additionalProperties") is False and not one.get("patternProperties")
    return closed and bool({*other.get("required", ())} - {*one.get("properties", {})})


def _types(schema: Schema) -> set[str]:
    if (values := _values(schema)) is not None:
        return {_type(value) for value in values}
    types = set(as_list(schema.get("type", list(_ALL))))
    return types - {"integer"} | ({"number"} if "integer" in types else set())


def _values(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def windows(out: Schema) -> Any:
    """Express `minProperties` and `maxProperties` of a closed object by which it has."""
    listed, required = out.get("properties", {}), out.get("required", [])
    if not listed or ("minProperties" not in out and "maxProperties" not in out):
        return out
    rest = {k: v for k, v in out.items() if k not in ("minProperties", "maxProperties")}
    possible = [name for name, value in listed.items() if value is not False]
    least = max(0, out.get("minProperties", 0) - len(required))
    most = out.get("maxProperties", len(possible)) - len(required)
    optional = [name for name in possible if name not in required]
    if least or "maxProperties" in out:
        # Those listed can make up the number; others would be counted as well.
        rest["additionalProperties"] = False
        rest.pop("patternProperties", None)
    if most < 0 or least > min(most, len(optional)):
        return False
    if not least and most >= len(optional):
        return rest
    size = min(most, len(optional))
    made = []
    for start in range(max(1, len(optional))):
        chosen = [optional[(start + n) % len(optional)] for n in range(size)] if optional else []
        kept = {n: v for n, v in listed.items() if n in required or n in chosen or v is False}
        dropped = {n: False for n in listed if n not in kept}
        made.append(
            {
                **rest,
                "properties": {n: kept.get(n, dropped.get(n)) for n in listed},
                "required": [*required, *chosen[:least]],
            }
        )
        if size == len(optional) and not least:
            break
    return made[0] if len(made) == 1 else {"anyOf": made}


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
