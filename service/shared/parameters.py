"""Parameters of fusion and eviction methods, declared once as dataclass fields.

A method is a frozen dataclass whose fields are made by `parameter(...)`. Two things are derived
from the fields: the schema, which the worker sends to the gateway when it starts, and the
validation, by which the gateway answers 422 before any work is done. The worker validates again.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kvstitch.service.errors import InvalidRequest

Schema = dict[str, dict[str, Any]]

AUTO = "auto"
"""A value that lets the worker choose, for parameters that allow it."""
LARGEST_INTEGER = 2**63 - 1
"""Of tensors' indices and of the messages between the processes."""

_NAMES = {float: "number", int: "integer", bool: "boolean", str: "string", tuple: "numbers"}


def parameter(
    default: Any,
    doc: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    choices: Sequence[str] | None = None,
    layer: bool = False,
    auto: bool = False,
    stateful: int | None = None,
) -> Any:
    """Return a dataclass field for one parameter, whose type is that of its default.

    Args:
        default: A tuple takes a list of numbers.
        doc: One line that explains it.
        ge: Smallest value, of each number; `le`: the largest.
        layer: It is the number of a layer, so at most that of the model's last layer.
        auto: A request may say "auto", and the worker's planner chooses.
        stateful: Default and largest value for models whose layers keep a state.
    """
    kind, flags = _NAMES[type(default)], {"layer": layer or None, "auto": auto or None}
    facts = {"type": kind, "doc": doc, "ge": ge, "le": le, "choices": choices, **flags}
    facts["stateful"] = stateful
    return dataclasses.field(default=default, metadata=facts)


def schema_of(cls: type) -> Schema:
    """Return the schema of a method: `{name: {type, default, doc, ge?, le?, choices?, …}}`."""
    out: Schema = {}
    for f in dataclasses.fields(cls):
        if "doc" in f.metadata:
            facts = {k: v for k, v in f.metadata.items() if v is not None}
            out[f.name] = {**facts, "default": f.default}
    return out


def for_model(schema: Schema, layers: int, *, stateful: bool) -> Schema:
    """Return `schema` with layer parameters limited to a model of so many layers, and others to
    what one allows whose layers keep a state."""
    fitted: Schema = {}
    for name, given in schema.items():
        facts = dict(given)
        most = facts.pop("stateful", None)
        if facts.get("layer"):
            facts["le"] = layers - 1
        if stateful and most is not None:
            facts |= {"default": most, "le": most}
        fitted[name] = facts
    return fitted


def check(schema: Schema, values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return all parameters, converted to the schema's types, with defaults filled in.

    Args:
        schema: Of the method.
        values: As the client sent them.
        where: "fusion" or "eviction"; prefixes the field in errors.

    Raises:
        InvalidRequest: A value is not accepted; the error names field, value and what is accepted.
    """
    found = {name: facts["default"] for name, facts in schema.items()}
    for name, value in values.items():
        field = f"{where}.{name}"
        if name not in schema:
            known = ", ".join(sorted(schema)) or "none"
            text = f"{field} is not a parameter of this method; its parameters are: {known}"
            raise InvalidRequest(text, field=field)
        found[name] = _check_one(schema[name], value, field)
    return found


def _check_one(facts: Mapping[str, Any], value: Any, field: str) -> Any:
    kind = facts["type"]
    if facts.get("auto") and value == AUTO:
        return AUTO
    if kind == "numbers":
        if not isinstance(value, list | tuple):
            raise InvalidRequest(f"{field} must be a list of numbers, not {value!r}", field=field)
        item = {**facts, "type": "number"}
        return tuple(_check_one(item, v, f"{field}[{i}]") for i, v in enumerate(value))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # False for NaN, infinity, and integers too large for a float.
    number = number and abs(value) <= sys.float_info.max
    ok = {
        "number": number,
        "integer": number
        and abs(value) <= LARGEST_INTEGER
        and (isinstance(value, int) or value.is_integer()),
        "boolean": isinstance(value, bool),
        "string": isinstance(value, str),
    }[kind]
    low, high, choices = facts.get("ge"), facts.get("le"), facts.get("choices")
    if ok and kind in ("number", "integer"):
        ok = (low is None or value >= low) and (high is None or value <= high)
    if not ok or (choices is not None and value not in choices):
        raise InvalidRequest(f"{field} must be {_accepted(facts)}, not {value!r}", field=field)
    return {"number": float, "integer": int}.get(kind, lambda v: v)(value)


def _accepted(facts: Mapping[str, Any]) -> str:
    if facts.get("choices"):
        return "one of " + ", ".join(facts["choices"])
    text = {"number": "a number", "integer": "an integer", "boolean": "true or false"}.get(
        facts["type"], "a string"
    )
    auto = f' or "{AUTO}"' if facts.get("auto") else ""
    low, high = facts.get("ge"), facts.get("le")
    if low is not None and high is not None:
        return f"{text} from {low:g} to {high:g}{auto}"
    if low is not None:
        return f"{text} of at least {low:g}{auto}"
    if high is not None:
        return f"{text} of at most {high:g}{auto}"
    return f"{text}{auto}"
