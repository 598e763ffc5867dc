"""JSON schemas whose objects hold what is listed, and nothing else.

A schema that does not mention other properties allows any. A model that may write any property goes
on writing them, and nobody who lists properties expects others.
"""

from __future__ import annotations

from typing import Any

_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
# Below allOf a property may be listed in another branch.
_OF_SCHEMAS = ("anyOf", "oneOf", "prefixItems")
_BY_NAME = ("properties", "$defs", "definitions")


def closed(schema: Any) -> Any:
    """The schema, with objects that list properties closed, unless it says otherwise."""
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    for name in _OF_SCHEMAS:
        if isinstance(out.get(name), list):
            out[name] = [closed(each) for each in out[name]]
    for name in _BY_NAME:
        if isinstance(out.get(name), dict):
            out[name] = {key: closed(each) for key, each in out[name].items()}
    for name in ("items", "additionalProperties"):
        out |= {name: closed(out[name])} if name in out else {}
    if "properties" in out and not any(name in out for name in (*_OPEN, "allOf", "$ref")):
        out["additionalProperties"] = False
    return out
