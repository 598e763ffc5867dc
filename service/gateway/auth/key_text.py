"""API keys as text: kvs_<id>_<secret>.

The secret has 256 random bits, so its plain SHA-256 cannot be inverted by guessing. Slow hashes
are for passwords, which people choose.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

KEY_PREFIX: Final = "kvs_"
_KEY = re.compile(r"kvs_([0-9a-f]{16})_([0-9a-f]{64})")


def new_key() -> tuple[str, str, bytes]:
    """Return a new key, its id, and the SHA-256 of its secret. The key itself is stored nowhere."""
    key_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    return f"{KEY_PREFIX}{key_id}_{secret}", key_id, digest(secret)


def parse(key: str) -> tuple[str, str] | None:
    """Return (id, secret), None if the text is not a key."""
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], found[2])


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def equal(one: bytes, other: bytes) -> bool:
    """Compare in constant time, so that the duration reveals nothing about either."""
    return hmac.compare_digest(one, other)
