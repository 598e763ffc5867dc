"""Every error that sealing and opening raise.

EncryptionError
├── KeyMissing       sealed under a key that is not here: deleted, or of another service
├── SealBroken       the bytes are not those that were sealed, or stand in another's place
└── MasterKeyError   the master key is missing, malformed, or not the one that wrapped the keys
"""


class EncryptionError(Exception):
    """Base of every error of this package."""


class KeyMissing(EncryptionError):
    """Sealed under a key that is not here: it was deleted, or belongs to another service."""


class SealBroken(EncryptionError):
    """The bytes are not those that were sealed, or they were sealed for another place."""


class MasterKeyError(EncryptionError):
    """The master key cannot be used; the message says what to do."""
