"""Metadata and filters as people type them: `year=2024`, or the JSON object. Knows no command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from service.cli.service_client import CommandError


def parse_pairs(args: Sequence[str] | None, option: str) -> dict[str, Any]:
    """All of `given` as one object: NAME=VALUE, where VALUE is JSON or else a string, or an object
    as a whole. Raises Refused naming `option`."""
    found: dict[str, Any] = {}
    for text in args or ():
        found |= _object(text, option) if text.lstrip().startswith("{") else _pair(text, option)
    return found


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{option} {text} is not valid JSON: {error}") from None
    return value


def _pair(text: str, option: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise CommandError(f"{option} {text}: write NAME=VALUE, or a JSON object")
    try:
        return {name.strip(): json.loads(value)}
    except (ValueError, RecursionError):
        return {name.strip(): value}
