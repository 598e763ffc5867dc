"""Addresses of other servers."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")


def _http_scheme(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return value


HttpUrl = Annotated[str, AfterValidator(_http_scheme)]
"""Of an HTTP server, or empty."""
