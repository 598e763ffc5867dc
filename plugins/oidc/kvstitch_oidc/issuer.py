"""What an issuer of tokens publishes: its addresses and its public keys, from a URL or a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx

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
