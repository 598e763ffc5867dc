"""Which settings hold secrets, and how these are shown."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel

# Addresses may have a password or a token in them.
ADDRESSES: Final = frozenset(
    {
        "counters_url", "database", "embedder_url", "oidc_jwks", "otlp_endpoint", "redis_url",
        "reranker_url", "s3_endpoint",
    }
)  # fmt: skip
HIDDEN: Final = ADDRESSES | {
    "embedder_key", "encryption_key", "fleet_secret", "oidc_client_secret",
    "reranker_key", "tenant_secret",
}  # fmt: skip
IS_SET: Final = "…"


def hidden(settings: type[BaseModel]) -> frozenset[str]:
    """Return the names of settings that hold secrets, plugins' among them."""
    return HIDDEN | {name for name, field in settings.model_fields.items() if not field.repr}


def masked(name: str, value: str, secret: Collection[str] = HIDDEN) -> str:
    """Return the value of a setting as people may see it: of an address scheme and host."""
    if name not in secret or not value:
        return value
    if name not in ADDRESSES:
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
