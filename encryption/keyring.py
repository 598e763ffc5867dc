"""The keys in memory: for each owner the key that seals now, and all that still open; errors."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


class EncryptionError(Exception):
    """Base of every error of this package."""


class KeyMissing(EncryptionError):
    """Sealed under a key that is not here: it was deleted, or belongs to another service."""


class SealBroken(EncryptionError):
    """The bytes are not those that were sealed, or they were sealed for another place."""


class MasterKeyError(EncryptionError):
    """The master key cannot be used; the message says what to do."""


KEY_ID_BYTES = 16
FRESH_S = 0.5
"""So long what seals is taken to be as it was."""


@dataclass(frozen=True)
class DataKey:
    """A key of one owner."""

    id: bytes  # 16 random bytes; what was sealed names it
    owner: str  # the tenant; empty: the unnamed one
    secret: bytes = field(repr=False)  # 32 bytes


class Keyring:
    """Keys by their ids and owners. Thread-safe.

    Args:
        keys: of each owner the oldest first.
        make: makes the first keys of an owner, and returns all of the owner's; None: they come
            from elsewhere.
        active: whether what is written is sealed; keys that are given later make it so.
        reload: returns all keys anew, called when one is not known, and before sealing every half a
            second; None: no more are to be had.
    """

    def __init__(
        self,
        keys: Iterable[DataKey] = (),
        *,
        make: Callable[[str], Sequence[DataKey]] | None = None,
        reload: Callable[[], Sequence[DataKey]] | None = None,
        active: bool = True,
    ) -> None:
        self.active = active
        self._make = make
        self._reload = reload
        self._lock = threading.RLock()
        self._version = 0
        self._read_at = 0.0
        self._by_id: dict[bytes, DataKey] = {key.id: key for key in keys}

    @property
    def version(self) -> int:
        """Rises with every change."""
        return self._version

    def all(self) -> list[DataKey]:
        """Return all keys, of each owner the oldest first."""
        with self._lock:
            return list(self._by_id.values())

    def replace(self, keys: Iterable[DataKey]) -> bool:
        """Hold these keys and no others; return whether that changed anything."""
        by_id = {key.id: key for key in keys}
        with self._lock:
            self.active = True
            if by_id == self._by_id and list(by_id) == list(self._by_id):
                return False
            self._by_id = by_id
            self._version += 1
        return True

    def current(self, owner: str) -> DataKey:
        """Return the key that seals what an owner stores now. Raises KeyMissing: the owner has
        none, and none can be made here."""
        self._look_again()
        if (found := self._latest(owner)) is not None:
            return found
        if self._make is not None:
            made = self._make(owner)
            with self._lock:
                self._by_id.update((key.id, key) for key in made)
                self._version += 1
        if (found := self._latest(owner)) is None:
            raise KeyMissing(f"the tenant {owner!r} has no key here")
        return found

    def find(self, key_id: bytes) -> DataKey:
        """Return a key by its id. Raises KeyMissing: it is not here."""
        found = self._by_id.get(key_id)
        if found is None and self._reload is not None:
            self.replace(self._reload())
            found = self._by_id.get(key_id)
        if found is None:
            raise KeyMissing(
                f"sealed under the key {key_id.hex()}, which is not here: it was deleted, or "
                "another service has it"
            )
        return found

    def owners(self) -> set[str]:
        """Return the owners that have keys."""
        return {key.owner for key in self.all()}

    def _look_again(self) -> None:
        """Read the keys again now and then: what is sealed under one that was deleted is lost."""
        now = time.monotonic()
        if self._reload is not None and now - self._read_at >= FRESH_S:
            self._read_at = now
            self.replace(self._reload())

    def _latest(self, owner: str) -> DataKey | None:
        own = [key for key in self.all() if key.owner == owner]
        return own[-1] if own else None
