"""AES-256-GCM under keys that are used for one message each, so that no nonce is used twice.

Each message has a random salt of 192 bits. What encrypts it is derived from the data key and the
salt (NIST SP 800-108, HMAC-SHA256 in counter mode, one block), and within a message nonces count.
Two messages would need the same salt to share a nonce: after 2^64 messages that has a probability
of 2^-65, where random nonces of 96 bits under one key allow 2^32 messages.
"""

from __future__ import annotations

import hmac
import os
from typing import Any

from encryption.errors import EncryptionError, SealBroken

KEY_BYTES = 32
SALT_BYTES = 24
TAG_BYTES = 16
NONCE_BYTES = 12


def new_salt() -> bytes:
    """Return the salt of a new message."""
    return os.urandom(SALT_BYTES)


def message_cipher(secret: bytes, salt: bytes, purpose: bytes) -> Any:
    """Return the AESGCM of one message, of a salt of `new_salt`; other purposes have other keys.

    Raises EncryptionError without the package cryptography.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise EncryptionError(
            "encryption needs the package cryptography: pip install 'kvstitch[encryption]'"
        ) from error
    label = b"\x01kvstitch " + purpose + b"\0" + salt + (256).to_bytes(4, "big")
    return AESGCM(hmac.digest(secret, label, "sha256"))


def nonce(number: int) -> bytes:
    """Return the nonce of a numbered part of a message."""
    return number.to_bytes(NONCE_BYTES, "big")


def decrypt(cipher: Any, number: int, sealed: Any, aad: bytes) -> bytes:
    """Return what was encrypted as a part of a message, its tag at its end.

    Raises:
        SealBroken: a bit differs, or it is another part, or of another message or place.
    """
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(cipher.decrypt(nonce(number), sealed, aad))
    except (InvalidTag, ValueError) as error:
        raise SealBroken("sealed bytes differ from what was written, or stand elsewhere") from error
