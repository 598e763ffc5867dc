"""The public keys of an issuer, held in memory: which of them verifies a token.

    older than refresh_s               they are read again; requests do not wait for it
    a token names a key not among them they are read again, not more often than every refetch_s
    they cannot be read                those that are known hold for max_age_s, then 503

So a provider may change its keys at any time, and may be away for a while; and whoever makes up
names of keys costs it a request every refetch_s at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from kvstitch_oidc.issuer import KeySource
from service.errors import IdentityUnavailable, InvalidToken

SHOWN_CHARS = 64
logger = logging.getLogger(__name__)

_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}  # by an algorithm's first letters


class SigningKeys:
    """Must be used on one event loop."""

    def __init__(
        self,
        source: KeySource,
        *,
        refresh_s: float,
        refetch_s: float,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._refresh_s, self._refetch_s, self._max_age_s = refresh_s, refetch_s, max_age_s
        self._clock = clock
        self._keys: Sequence[Mapping[str, Any]] = ()
        self._made: dict[tuple[str | None, str], PyJWK] = {}  # of _keys
        self._read_at = self._tried_at = float("-inf")
        self._failure = ""  # why the last read failed; empty: it did not
        self._reading: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def find(self, key_id: str | None, algorithm: str) -> PyJWK:
        """Return the key that verifies signatures by this algorithm."""
        if self._age > self._max_age_s:
            await self._read_again()
            if self._age > self._max_age_s:
                raise self._unavailable()
        elif self._age > self._refresh_s:
            self._begin()
        if found := self._known(key_id, algorithm):
            return found
        await self._read_again()
        if found := self._known(key_id, algorithm):
            return found
        if self._failure:  # it may be a new key
            raise self._unavailable()
        if key_id is None:
            raise InvalidToken(
                f"the token names no key (kid), and the issuer has not just one for {algorithm}",
                field="kid",
            )
        raise InvalidToken(
            f"the issuer has no key {key_id[:SHOWN_CHARS]!r} for {algorithm}: sign in again",
            field="kid",
        )

    @property
    def _age(self) -> float:
        return self._clock() - self._read_at

    def _known(self, key_id: str | None, algorithm: str) -> PyJWK | None:
        if made := self._made.get((key_id, algorithm)):
            return made
        found = [
            key
            for key in self._keys
            if (key_id is None or key.get("kid") == key_id) and _verifies(key, algorithm)
        ]
        if len(found) != 1:
            return None
        try:
            made = self._made[key_id, algorithm] = PyJWK(dict(found[0]), algorithm)
        except (PyJWTError, ValueError):
            logger.warning("the issuer's key %r cannot be used for %s", key_id, algorithm)
            return None
        return made

    async def _read_again(self) -> None:
        """Wait for a read that is under way, or for a new one unless the last was just now."""
        self._begin()
        if self._reading is not None:
            await asyncio.shield(self._reading)  # others may wait for it, too

    def _begin(self) -> None:
        if self._reading is None and self._clock() - self._tried_at >= self._refetch_s:
            self._reading = asyncio.create_task(self._read(), name="signing keys")

    async def _read(self) -> None:
        self._tried_at = self._clock()
        try:
            keys = await self._source.read()
            if not keys:
                raise ValueError("the issuer publishes no key")
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            failure = f"{type(error).__name__}: {error}"
            if failure != self._failure:  # once, and not every refetch_s
                logger.warning("the issuer's public keys cannot be read: %s", failure)
            self._failure = failure
        else:
            self._keys, self._read_at, self._failure = keys, self._tried_at, ""
            self._made.clear()
        finally:
            self._reading = None

    def _unavailable(self) -> IdentityUnavailable:
        return IdentityUnavailable(
            "the public keys of the issuer of tokens cannot be read at the moment, so no token can "
            "be verified: try again; API keys go on working",
            retry_after_s=self._refetch_s,
        )


def _verifies(key: Mapping[str, Any], algorithm: str) -> bool:
    """Return whether a key is made for signatures by this algorithm, and for nothing else."""
    operations = key.get("key_ops", ["verify"])
    return (
        key.get("kty") == _KEY_TYPES[algorithm[:2]]
        and key.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
        and key.get("alg", algorithm) == algorithm
    )
