"""Writes responses, records and models of pydantic alike, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import TypeAdapter

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def json_value(response: Any, **options: Any) -> Any:
    """Return a response as values of JSON; options are pydantic's, such as exclude_none."""
    return _adapter(type(response)).dump_python(response, mode="json", **options)


def json_bytes(response: Any, **options: Any) -> bytes:
    """Return a response as JSON; options are pydantic's, such as exclude_none."""
    return _adapter(type(response)).dump_json(response, **options)
