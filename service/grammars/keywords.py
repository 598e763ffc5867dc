"""Keywords of JSON Schema that llguidance does not know, said with those that it does.

dependencies      any of: without the one property, or with what it asks for
not, if           of properties that are required, or have certain values
propertyNames     patterns of the properties
contains          the first items are such
uniqueItems       of few values: every subset that fits
"""

from itertools import combinations
from typing import Any

from kvstitch.service.grammars.merging import Schema, both
from kvstitch.service.grammars.patterns import HELD

MAX_SUBSET = 5

KEPT = frozenset(
    (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
"""Keywords that llguidance holds itself."""
REWRITTEN = frozenset(
    (
        *("if", "then", "else", "not", "propertyNames", "uniqueItems"),
        *("contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies"),
        *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
    )
)


def rewritten(own: Schema, note: Any) -> tuple[Schema, list[Any]]:
    """Rewrite the keywords of one object of a schema."""
    out = {key: value for key, value in own.items() if key in KEPT}
    extra: list[Any] = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, asked in own.get(keyword, {}).items():
            with_name = {"required": [name, *(asked if isinstance(asked, list) else ())]}
            then = with_name if isinstance(asked, list) else {"allOf": [asked, with_name]}
            extra.append({"anyOf": [then, {"properties": {name: False}}]})
    if "not" in own:
        other = own["not"]
        if isinstance(other, dict) and set(other) == {"required"} and len(other["required"]) == 1:
            extra.append({"properties": {other["required"][0]: False}})
        else:
            note("not")
    if "if" in own and ("then" in own or "else" in own):
        extra += _conditional(own, out, note)
    if "propertyNames" in own:
        _name_properties(own["propertyNames"], out, note)
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


def _conditional(own: Schema, out: Schema, note: Any) -> list[Any]:
    """`if` a property has certain values, of those that it may have: both cases are held."""
    then, otherwise, test = own.get("then", True), own.get("else", True), own["if"]
    tested = test.get("properties", {}) if isinstance(test, dict) else {}
    if (
        len(tested) == 1
        and not set(test) - {"properties", "required", "type"}
        and not set(test.get("required", ())) - set(tested)
    ):
        [(name, value)] = tested.items()
        values, possible = _allowed(value), _allowed(out.get("properties", {}).get(name))
        if values is not None and possible is not None:
            branches: list[Any] = []
            if hit := [value for value in possible if value in values]:
                branches.append({"allOf": [{"properties": {name: {"enum": hit}}}, then]})
            if rest := [value for value in possible if value not in values]:
                needed = {"properties": {name: {"enum": rest}}, "required": [name]}
                branches.append({"allOf": [needed, otherwise]})
            return [{"anyOf": branches}] if branches else []
    note("if")
    return []


def _allowed(value: Any) -> list[Any] | None:
    if not isinstance(value, dict):
        return None
    if "const" in value:
        return [value["const"]]
    if isinstance(value.get("enum"), list):
        return list(value["enum"])
    return [True, False] if value.get("type") == "boolean" else None


def _name_properties(names: Any, out: Schema, note: Any) -> None:
    """`propertyNames`, of an object that lists none, as names or patterns of its properties."""
    value, pattern = out.get("additionalProperties", {}), None
    if isinstance(names, dict) and not out.get("properties") and "patternProperties" not in out:
        said = {key: each for key, each in names.items() if key in KEPT}
        kinds = set(said) - {"type"}
        if kinds == {"enum"}:
            closed = {"properties": dict.fromkeys(said["enum"], value)}
            out.update({**closed, "additionalProperties": False})
            return
        if kinds == {"pattern"}:
            pattern = said["pattern"]
        elif kinds <= {"minLength", "maxLength"}:
            pattern = f"^[^\\n]{{{said.get('minLength', 0)},{said.get('maxLength', '')}}}$"
        elif kinds == {"format"} and said["format"] in HELD:
            pattern = f"^({HELD[said['format']]})$"
    if pattern is None:
        note("propertyNames")
    else:
        out.update({"patternProperties": {pattern: value}, "additionalProperties": False})


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
    return {**out, "prefixItems": [first] * least, "minItems": max(least, out.get("minItems", 0))}


def _subsets(out: Schema) -> Schema | None:
    """`uniqueItems` of few values: each at most once, in their order."""
    values = _allowed(out.get("items"))
    if values is None or len(values) > MAX_SUBSET or "prefixItems" in out:
        return None
    values = [value for n, value in enumerate(values) if value not in values[:n]]
    least, most = out.get("minItems", 0), out.get("maxItems", len(values))
    sizes = range(least, min(most, len(values)) + 1)
    fitting = [list(each) for size in sizes for each in combinations(values, size)]
    if not fitting:
        return None
    rest = {key: v for key, v in out.items() if key not in ("items", "minItems", "maxItems")}
    return {**rest, "type": "array", "enum": fitting}
