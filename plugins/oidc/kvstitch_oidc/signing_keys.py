"""What an issuer publishes, from a URL or a file, and its public keys, held in memory.

    older than refresh_s               they are read again; requests do not wait for it
    a token names a key not among them they are read again, not more often than every refetch_s
    they cannot be read                those that are known hold for max_age_s, then 503

So a provider may change its keys at any time, and may be away for a while; and whoever makes up
names of keys costs it a request every refetch_s at most.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from kvstitch.service.errors import IdentityUnavailable, InvalidToken

TIMEOUT_S = 5.0
MAX_BYTES = 1 << 20
DISCOVERY = "/.well-known/openid-configuration"
_HTTP = ("http://", "https://")


class KeySource(Protocol):
    """Where public keys come from."""

    async def read(self) -> Sequence[Mapping[str, Any]]:
        """Return the keys as JWKs (RFC 7517)."""
        ...


class Issuer:
    """An OpenID provider, or whoever else publishes keys."""

    def __init__(self, name: str, jwks: str = "") -> None:
        self.name = name
        self._jwks = jwks

    async def read(self) -> Sequence[Mapping[str, Any]]:
        """Return the public keys; see `KeySource`."""
        where = self._jwks or endpoint(await self.described(), "jwks_uri")
        if where.startswith(_HTTP):
            found = await _get(where)
        else:
            found = json.loads(await asyncio.to_thread(Path(where).read_bytes))
        keys = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(keys, list):
            raise ValueError(f"{where} holds no JSON Web Key Set")
        return [key for key in keys if isinstance(key, dict)]

    async def described(self) -> Mapping[str, Any]:
        """Return what the provider says of itself (OpenID Connect Discovery)."""
        found = await _get(self.name.rstrip("/") + DISCOVERY)
        if not isinstance(found, dict) or found.get("issuer") != self.name:
            # Who may answer for this address need not be who may speak for this issuer.
            raise ValueError(f"what {self.name} says of itself is of another issuer")
        return found


def endpoint(described: Mapping[str, Any], name: str) -> str:
    """Return an address of what a provider says of itself."""
    value = described.get(name)
    if not isinstance(value, str) or not value.startswith(_HTTP):
        raise ValueError(f"the issuer does not say its {name}")
    return value


async def _get(url: str) -> Any:
    status, found = await request_json("GET", url)
    if status != 200:
        raise ValueError(f"{url} answers with status {status}")
    return found


async def request_json(method: str, url: str, **sent: Any) -> tuple[int, Any]:
    """Return status and body of an answer of the issuer's."""
    async with (
        asyncio.timeout(TIMEOUT_S),
        httpx.AsyncClient(timeout=TIMEOUT_S) as client,
        client.stream(method, url, **sent) as reply,
    ):
        body = bytearray()
        async for part in reply.aiter_bytes():
            body += part
            if len(body) > MAX_BYTES:
                raise ValueError(f"{url} answers with more than {MAX_BYTES} bytes")
    return reply.status_code, json.loads(body)


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
