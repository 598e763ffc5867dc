"""Examples of every route for OpenAPI, recorded by scripts/record_api_examples.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Example:
    """Bodies of one route. requests: media type → name → body; response: media type → body."""

    requests: dict[str, dict[str, Any]]
    response: dict[str, Any]


@cache
def examples() -> dict[tuple[str, str], Example]:
    """(method in lower case, the route's path) → its example."""
    text = (
        files("service.gateway.http").joinpath("openapi_examples.json").read_text(encoding="utf-8")
    )
    return {_key(route): Example(**recorded) for route, recorded in json.loads(text).items()}


def _key(route: str) -> tuple[str, str]:
    method, _, path = route.partition(" ")
    return method.lower(), path
