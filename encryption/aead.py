"""AES-256-GCM under keys that are used for one message each, so that no nonce is used twice.

Each message has a random salt of 192 bits. What encrypts it is derived from the data key and the
salt (NIST SP 800-108, HMAC-SHA256 in counter mode, one block), and within a message nonces count.
Two messages would need the same salt to share a nonce: after 2^64 messages that has a probability
of 2^-65, where random nonces of 96 bits under one key allow 2^32 messages.

A sealed value is bound to its place, which is authenticated and not stored, so that a value that is
moved elsewhere does not open:

    magic 4 | key id 16 | salt 24 | AES-256-GCM of the value, tag 16      44 + n + 16 bytes
"""

import hmac
import os
from typing import Any

from kvstitch.encryption.keyring import KEY_ID_BYTES, DataKey, EncryptionError, Keyring, SealBroken

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
    """Return what was encrypted as a part of a message, its tag at its end. Raises SealBroken: a
    bit differs, or it is another part, or of another message or place."""
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(cipher.decrypt(nonce(number), sealed, aad))
    except (InvalidTag, ValueError) as error:
        raise SealBroken("sealed bytes differ from what was written, or stand elsewhere") from error


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
    """Return the value that was sealed. Raises KeyMissing: its key is not here; SealBroken: it was
    changed, or sealed for another place."""
    if not is_sealed(sealed):
        raise SealBroken("these bytes are not sealed")
    head = sealed[:HEAD_BYTES]
    key = keys.find(head[len(MAGIC) : len(MAGIC) + KEY_ID_BYTES])
    cipher = message_cipher(key.secret, head[-SALT_BYTES:], b"value")
    return decrypt(cipher, 0, sealed[HEAD_BYTES:], head + where)
