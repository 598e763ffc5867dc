"""Sealed values: bytes that are bound to their place.

    magic 4 | key id 16 | salt 24 | AES-256-GCM of the value, tag 16      44 + n + 16 bytes

The place is authenticated and not stored, so a value that is moved elsewhere does not open.
"""

from __future__ import annotations

from encryption.aead import SALT_BYTES, TAG_BYTES, decrypt, message_cipher, new_salt, nonce
from encryption.errors import SealBroken
from encryption.keyring import KEY_ID_BYTES, DataKey, Keyring

MAGIC = b"KVE1"
HEAD_BYTES = len(MAGIC) + KEY_ID_BYTES + SALT_BYTES
SEALED_BYTES = HEAD_BYTES + TAG_BYTES
"""What sealing adds."""


def place(*names: object) -> bytes:
    """Return the place of a value, from the names that lead to it; no two places are alike."""
    return b"".join(len(b).to_bytes(4, "big") + b for b in (str(n).encode() for n in names))


def seal(key: DataKey, plain: bytes, where: bytes) -> bytes:
    """Seal a value for a place."""
    salt = new_salt()
    head = MAGIC + key.id + salt
    cipher = message_cipher(key.secret, salt, b"value")
    return head + bytes(cipher.encrypt(nonce(0), plain, head + where))


def is_sealed(raw: bytes) -> bool:
    """Return whether bytes look as `seal` makes them."""
    return len(raw) >= SEALED_BYTES and raw.startswith(MAGIC)


def open_sealed(keys: Keyring, sealed: bytes, where: bytes) -> bytes:
    """Return the value that was sealed.

    Raises:
        KeyMissing: its key is not here.
        SealBroken: it was changed, or sealed for another place.
    """
    if not is_sealed(sealed):
        raise SealBroken("these bytes are not sealed")
    head = sealed[:HEAD_BYTES]
    key = keys.find(head[len(MAGIC) : len(MAGIC) + KEY_ID_BYTES])
    cipher = message_cipher(key.secret, head[-SALT_BYTES:], b"value")
    return decrypt(cipher, 0, sealed[HEAD_BYTES:], head + where)
