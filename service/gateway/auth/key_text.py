"""API keys as text: kvs_<id>_<secret>. Knows no database.

The secret has 256 random bits, so a plain SHA-256 of it cannot be guessed backwards: a slow hash
protects passwords, which people choose.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

KEY_PREFIX: Final = "kvs_"
SCOPES: Final = ("generate", "ingest", "admin", "metrics")
_KEY = re.compile(r"kvs_([0-9a-f]{16})_([0-9a-f]{64})")


def new_key() -> tuple[str, str, bytes]:
    """(key, its id, SHA-256 of its secret). The key itself is kept nowhere."""
    key_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    return f"{KEY_PREFIX}{key_id}_{secret}", key_id, digest(secret)


def parse(key: str) -> tuple[str, str] | None:
    """(id, secret), None for what is no key."""
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], found[2])


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def equal(one: bytes, other: bytes) -> bool:
    """In a time that tells nothing about either."""
    return hmac.compare_digest(one, other)
