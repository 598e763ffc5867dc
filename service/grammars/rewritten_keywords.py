"""Keywords of JSON Schema that llguidance does not know, said with those that it does.

dependencies      any of: without the one property, or with what it asks for
not, if           of properties that are required, or have certain values
propertyNames     patterns of the properties
contains          the first items are such
uniqueItems       of few values: every subset that fits
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.grammars.merging import Schema, both
from service.grammars.patterns import HELD

MAX_SUBSET = 5

KEPT = frozenset(
    [
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
    ]
)
"""Keywords that llguidance holds itself."""


def rewritten(own: Schema, note: Any) -> tuple[Schema, list[Any]]:
    """Rewrite the keywords of one object of a schema."""
    out = {key: value for key, value in own.items() if key in KEPT}
    extra: list[Any] = []
    dependencies = own.get("dependencies", {})
    requires = {
        **own.get("dependentRequired", {}),
        **{k: v for k, v in dependencies.items() if isinstance(v, list)},
    }
    schemas = {
        **own.get("dependentSchemas", {}),
        **{k: v for k, v in dependencies.items() if not isinstance(v, list)},
    }
    for name, others in requires.items():
        extra.append(_unless(name, {"required": [name, *others]}))
    for name, other in schemas.items():
        extra.append(_unless(name, {"allOf": [other, {"required": [name]}]}))
    if "not" in own:
        extra += _negated(own["not"], note)
    if "if" in own and ("then" in own or "else" in own):
        extra += _conditional(own, out, note)
    if "propertyNames" in own:
        extra += _named(own["propertyNames"], out, note)
    if "contains" in own:
        out = _containing(own, out, note)
    elif own.get("uniqueItems") and own.get("maxItems") != 1:
        if not (made := _subsets(out)):
            note("uniqueItems")
        else:
            out = made
    for name in ("unevaluatedItems", "$dynamicRef", "$recursiveRef"):
        if name in own:
            note(name)
    if own.get("unevaluatedProperties") is False:
        out["unevaluatedProperties"] = False
    if own.get("uniqueItems") and "contains" in own:
        note("uniqueItems")
    return out, extra


def _unless(name: str, then: Any) -> Schema:
    return {"anyOf": [then, {"properties": {name: False}}]}


def _negated(other: Any, note: Any) -> list[Any]:
    if isinstance(other, dict) and set(other) == {"required"} and len(other["required"]) == 1:
        return [{"properties": {other["required"][0]: False}}]
    note("not")
    return []


def _conditional(own: Schema, out: Schema, note: Any) -> list[Any]:
    """`if` a property has certain values, of those that it may have: both cases are held."""
    then, otherwise = own.get("then", True), own.get("else", True)
    test = own["if"]
    cases = _values(test)
    if cases is not None:
        name, values = cases
        all_values = _allowed(out.get("properties", {}).get(name))
        if all_values is not None:
            rest = [value for value in all_values if value not in values]
            hit = [value for value in all_values if value in values]
            branches: list[Any] = []
            if hit:
                branches.append({"allOf": [{"properties": {name: {"enum": hit}}}, then]})
            if rest:
                needed = {"properties": {name: {"enum": rest}}, "required": [name]}
                branches.append({"allOf": [needed, otherwise]})
            return [{"anyOf": branches}] if branches else []
    note("if")
    return []


def _values(test: Any) -> tuple[str, list[Any]] | None:
    if not isinstance(test, dict) or set(test) - {"properties", "required", "type"}:
        return None
    properties = test.get("properties", {})
    if len(properties) != 1 or set(test.get("required", ())) - set(properties):
        return None
    name, value = next(iter(properties.items()))
    found = _allowed(value)
    return None if found is None else (name, found)


def _allowed(value: Any) -> list[Any] | None:
    if not isinstance(value, dict):
        return None
    if "const" in value:
        return [value["const"]]
    if isinstance(value.get("enum"), list):
        return list(value["enum"])
    return [True, False] if value.get("type") == "boolean" else None


def _named(names: Any, out: Schema, note: Any) -> list[Any]:
    """`propertyNames`, of an object that lists none, as patterns of its properties."""
    other = out.get("additionalProperties", {})
    if isinstance(names, dict) and not out.get("properties") and "patternProperties" not in out:
        allowed = {key: v for key, v in names.items() if key in KEPT}
        if set(allowed) <= {"type", "enum"} and "enum" in allowed:
            closed = {"properties": dict.fromkeys(allowed["enum"], other)}
            out.update({**closed, "additionalProperties": False})
            return []
        pattern = allowed.get("pattern")
        if set(allowed) <= {"type", "pattern"} and pattern is not None:
            out.update({"patternProperties": {pattern: other}, "additionalProperties": False})
            return []
        if set(allowed) <= {"type", "minLength", "maxLength"}:
            bounds = f"{allowed.get('minLength', 0)},{allowed.get('maxLength', '')}"
            pattern = f"^[^\\n]{{{bounds}}}$"
            out.update({"patternProperties": {pattern: other}, "additionalProperties": False})
            return []
        if set(allowed) <= {"type", "format"} and allowed.get("format") in HELD:
            pattern = f"^({HELD[allowed['format']]})$"
            out.update({"patternProperties": {pattern: other}, "additionalProperties": False})
            return []
    note("propertyNames")
    return []


def _containing(own: Schema, out: Schema, note: Any) -> Schema:
    """`contains`: the first items are such."""
    least = own.get("minContains", 1)
    if "maxContains" in own:
        note("maxContains")
    if not least:
        return out
    if "prefixItems" in out or isinstance(out.get("items"), list) or least > 64:
        note("contains")
        return out
    first = both(out.get("items", True), own["contains"])
    return {
        **out,
        "prefixItems": [first] * least,
        "minItems": max(least, out.get("minItems", 0)),
    }


def _subsets(out: Schema) -> Schema | None:
    """`uniqueItems` of few values: each at most once, in their order."""
    values = _allowed(out.get("items"))
    if values is None or len(values) > MAX_SUBSET or "prefixItems" in out:
        return None
    values = [value for n, value in enumerate(values) if value not in values[:n]]
    least, most = out.get("minItems", 0), out.get("maxItems", len(values))
    chosen: Sequence[list[Any]] = [
        [value for n, value in enumerate(values) if bits >> n & 1]
        for bits in range(2 ** len(values))
    ]
    fitting = [each for each in chosen if least <= len(each) <= most]
    if not fitting:
        return None
    rest = {key: v for key, v in out.items() if key not in ("items", "minItems", "maxItems")}
    return {**rest, "type": "array", "enum": fitting}
