"""What becomes of a field of a request: it is honoured, noted or refused, never just ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from service.errors import InvalidRequest, Unsupported

MAX_NAMED = 5


@dataclass(frozen=True)
class FieldRule:
    """What becomes of one field.

    Attributes:
        treatment: honoured; noted: accepted, without an effect, and `kvstitch.warnings` says so;
            refused, unless the value asks for nothing.
        why: What it does, or why it does nothing here.
        harmless: Values of a field that is not honoured which ask for nothing, and are accepted
            without a word; null always is.
    """

    treatment: Literal["honoured", "noted", "refused"]
    why: str
    harmless: tuple[Any, ...] = ()


Rules = Mapping[str, FieldRule]


def honoured(why: str) -> FieldRule:
    return FieldRule("honoured", why)


def noted(why: str, *harmless: Any) -> FieldRule:
    return FieldRule("noted", why, harmless)


def refused(why: str, *harmless: Any) -> FieldRule:
    return FieldRule("refused", why, harmless)


def check_fields(extra: Mapping[str, Any] | None, rules: Rules, where: str = "") -> list[str]:
    """Check fields that the route's schema does not take.

    Args:
        extra: Their names and values.
        rules: Of the object that holds them.
        where: Path of this object in the body, with a point at its end.

    Returns:
        What is to be noted for the client.

    Raises:
        Unsupported: A known field asks for what is not supported here.
        InvalidRequest: A field is not known.
    """
    notes = []
    for name, value in (extra or {}).items():
        path = f"{where}{name}"
        rule = rules.get(name)
        if rule is None:
            raise InvalidRequest(
                f"{path} is not a known field: leave it out, or correct its name", field=path
            )
        if value is None or any(_same(value, harmless) for harmless in rule.harmless):
            continue
        if rule.treatment == "refused":
            raise Unsupported(
                f"{path} is not supported here ({rule.why}): leave it out", field=path
            )
        if rule.treatment == "noted":
            notes.append(f"{path} has no effect: {rule.why}")
    return notes


def _same(value: Any, harmless: Any) -> bool:
    """Equal, and of one kind: JSON's false is not 0."""
    return isinstance(value, bool) == isinstance(harmless, bool) and bool(value == harmless)
