"""Which settings hold secrets, and how these are shown."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel
from pydantic.config import JsonDict

IS_SET: Final = "…"
ADDRESS: Final[JsonDict] = {"address": True}
"""`json_schema_extra` of a secret setting that is an address, which may hold a password."""


def hidden(settings: type[BaseModel]) -> frozenset[str]:
    """Return the names of settings that hold secrets."""
    return frozenset(name for name, field in settings.model_fields.items() if not field.repr)


def is_address(name: str, settings: type[BaseModel]) -> bool:
    extra = settings.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and extra.get("address") is True


def masked(name: str, value: str, settings: type[BaseModel]) -> str:
    """Return the value of a setting as people may see it: of an address scheme and host."""
    if name not in hidden(settings) or not value:
        return value
    if not is_address(name, settings):
        return IS_SET
    try:
        parts = urlsplit(value)
    except ValueError:
        return IS_SET
    if not parts.netloc:
        return IS_SET
    user, at, host = parts.netloc.rpartition("@")
    rest = parts.path.strip("/") or parts.query or parts.fragment
    return f"{parts.scheme}://{IS_SET if user else ''}{at}{host}{'/' + IS_SET if rest else ''}"
