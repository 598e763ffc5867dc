"""API keys of a shared database, held in memory so that no request waits for the database.

a key made or revoked elsewhere   counts here after REFRESH_S
the database does not answer      what is known counts for MAX_AGE_S, then requests are refused
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from service.errors import DatabaseUnavailable
from service.gateway.auth import key_text
from service.gateway.auth.keys import KeyStore, StoredKey

REFRESH_S = 1.0
MAX_AGE_S = 60.0


class KeyCache:
    """Answers what `Access` asks, from a copy that is renewed all the time."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._keys: dict[str, tuple[StoredKey, bytes]] = {}
        self._read_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """Read all keys. Blocks."""
        started = time.monotonic()
        self._keys = {key.key_id: (key, digest) for key, digest in self._store.with_digests()}
        self._read_at = started

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="keys")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def find(self, key: str) -> StoredKey | None:
        """The valid key with this text, None if there is none.

        Raises:
            DatabaseUnavailable: It is not known any more which keys are valid.
        """
        known = self._known()
        parsed = key_text.parse(key)
        if parsed is None:
            return None
        key_id, secret = parsed
        found, expected = known.get(key_id, (None, bytes(32)))
        # Compare for an unknown id too, so that it takes as long as a wrong secret.
        if not key_text.equal(key_text.digest(secret), expected) or found is None:
            return None
        return found if found.valid(time.time()) else None

    def any(self) -> bool:
        """Whether a key was ever made; revoking the last one must not open the service."""
        return bool(self._known())

    def _known(self) -> dict[str, tuple[StoredKey, bytes]]:
        if time.monotonic() - self._read_at > MAX_AGE_S:
            raise DatabaseUnavailable("the database of API keys does not answer", retry_after_s=2.0)
        return self._keys

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            with contextlib.suppress(DatabaseUnavailable):
                await asyncio.to_thread(self.refresh)
