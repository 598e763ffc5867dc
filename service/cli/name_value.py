"""Parses metadata and filters as people type them: `year=2024`, or a JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from service.cli.service_client import WrongArgument


def parse_pairs(texts: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Join all arguments of an option into one object.

    Args:
        texts: Each is NAME=VALUE, where VALUE is JSON or else a string, or a JSON object.
        option: For errors.

    Raises:
        CommandError: An argument is neither.
    """
    found: dict[str, Any] = {}
    for text in texts or ():
        found |= _object(text, option) if text.lstrip().startswith("{") else _pair(text, option)
    return found


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongArgument(f"{option} {text} is not valid JSON: {error}") from None
    return value


def _pair(text: str, option: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise WrongArgument(f"{option} {text}: write NAME=VALUE, or a JSON object")
    try:
        return {name.strip(): json.loads(value)}
    except (ValueError, RecursionError):
        return {name.strip(): value}
