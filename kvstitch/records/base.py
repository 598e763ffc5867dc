"""What makes a class a record: frozen, with names for all fields, and described to pydantic."""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")
ABSENT = "absent"
"""In a field's metadata: its value where an older service does not send it."""


def told(
    description: str = "", *, default: Any = MISSING, default_factory: Any = MISSING, **more: Any
) -> Any:
    """Return a field with its description in /openapi.json, and e.g. its value where `absent`."""
    metadata = {**({"description": description} if description else {}), **more}
    return field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, told))
def record(kind: type[T]) -> type[T]:
    """Make a record of a class; its docstring is its description in /openapi.json."""
    doc = kind.__dict__.get("__doc__")  # no base's
    extra = {"description": inspect.cleandoc(doc)} if doc else {}
    kind.__pydantic_config__ = {"json_schema_extra": extra}  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(kind)


def filled(kind: type[T], like: Any, **given: Any) -> T:
    """Make a record; fields that are not given are those of the same names in `like`."""
    same = {field.name: getattr(like, field.name)
            for field in fields(kind)  # type: ignore[arg-type]
            if field.name not in given and hasattr(like, field.name)}  # fmt: skip
    return kind(**same, **given)


class Result:
    # A whole answer of the API. In a client `raw` is the JSON as it was sent, also of what this
    # version does not know.
    raw: ClassVar[Mapping[str, Any]] = MappingProxyType({})


class Fields:
    # So that what earlier clients gave as a dict is still read as one.
    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)
