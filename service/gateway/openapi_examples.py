"""Examples of every route for OpenAPI. Knows no code."""

from __future__ import annotations

from typing import Any

# (method, path) → media type → name → body
REQUESTS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
# (method, path) → media type → body of the first 2xx
RESPONSES: dict[tuple[str, str], dict[str, Any]] = {}
