"""Texts and bytes in rows of the service's own tables, sealed under the key of their tenant."""

from __future__ import annotations

from dataclasses import dataclass

from encryption.errors import EncryptionError
from encryption.keyring import Keyring
from encryption.values import is_sealed, open_sealed, open_text, place, seal, seal_text
from service.errors import KeyDeleted


@dataclass(frozen=True)
class SealedRows:
    """Seals and opens values of rows.

    Attributes:
        keys: of tenants; None: what is stored is in the clear.
    """

    keys: Keyring | None = None

    def text(self, tenant: str, text: str | None, *where: object) -> str | None:
        """Return what is stored for a text of a row."""
        if self.keys is None or not text:
            return text
        return seal_text(self.keys.current(tenant), text, place(*where))

    def content(self, tenant: str, raw: bytes, *where: object) -> bytes:
        """Return what is stored for bytes of a row."""
        return raw if self.keys is None else seal(self.keys.current(tenant), raw, place(*where))

    def opened_text(self, text: str | None, *where: object) -> str | None:
        """Return a text of a row.

        Raises:
            KeyDeleted: it cannot be opened.
        """
        if self.keys is None or not text:
            return text
        try:
            return open_text(self.keys, text, place(*where))
        except EncryptionError as error:
            raise locked(error) from error

    def opened_content(self, raw: bytes, *where: object) -> bytes:
        """Return bytes of a row. Raises as `opened_text`."""
        if self.keys is None or not is_sealed(raw):
            return raw
        try:
            return open_sealed(self.keys, raw, place(*where))
        except EncryptionError as error:
            raise locked(error) from error


def locked(error: Exception) -> KeyDeleted:
    """Return the service's error for what does not open."""
    return KeyDeleted(f"this cannot be decrypted ({error}): ingest the document again")
