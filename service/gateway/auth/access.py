"""Decides who a request is from and what it may do.

    header ── key ── key store ── Principal(tenant, view) ── required scope ── quotas ── route

A service without keys is open, and every sender is ANONYMOUS. As soon as the first key has been
made every request needs one, unless `allow_anonymous` is set.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from retriever.readers import EVERYTHING, View
from service.errors import Forbidden, InvalidSetting, Unauthenticated
from service.gateway.auth.key_text import KEY_PREFIX, SCOPES
from service.gateway.auth.keys import StoredKey
from service.gateway.auth.quotas import Limits, Quotas

_KEY_NEEDED: Final = (
    "an API key is needed: send it as `Authorization: Bearer kvs_…` or `x-api-key: kvs_…` "
    "(`kvstitch keys create` makes one)"
)


def _count_nothing(tokens: int) -> None:
    """Count no tokens, for senders without a key."""


@dataclass(frozen=True)
class Principal:
    """The sender of a request.

    Attributes:
        tenant: Whose documents it sees; "" is the unnamed tenant.
        key_id: Of its API key; "": it has none.
        scopes: What the key may do.
        limits: The key's quotas.
        spend_tokens: Counts tokens of prompt and answer against the quotas of key and tenant.
        adapter: The LoRA adapter that the key is bound to; "": none.
        view: What it may read of the tenant's documents.
    """

    tenant: str
    key_id: str
    scopes: frozenset[str]
    limits: Limits = field(default_factory=Limits)
    spend_tokens: Callable[[int], None] = field(default=_count_nothing, compare=False, repr=False)
    adapter: str = ""
    view: View = EVERYTHING


ANONYMOUS = Principal("", "", frozenset(SCOPES))


class Keys(Protocol):
    """Looks up API keys: the key store itself, or a copy of a shared one."""

    def find(self, key: str) -> StoredKey | None: ...

    def any(self) -> bool: ...


class Access:
    """Looks every key up anew, so that a revoked key is refused as soon as it is known."""

    def __init__(self, keys: Keys, quotas: Quotas, *, allow_anonymous: bool) -> None:
        self._keys = keys
        self._quotas = quotas
        self._allow_anonymous = allow_anonymous

    @property
    def open(self) -> bool:
        """Whether a request without a key is served."""
        return self._allow_anonymous or not self._keys.any()

    def check_exposure(self, host: str) -> None:
        """Raise InvalidSetting if anyone could use the service at this address without a key."""
        if self.open and not self._allow_anonymous and not is_loopback(host):
            raise InvalidSetting(
                f"host is {host}, which others can reach, and there is no API key: make one with "
                "`kvstitch keys create`, or set KVSTITCH_ALLOW_ANONYMOUS=true if something else "
                "decides who gets through"
            )

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Return the sender of a request with these headers.

        Raises:
            Unauthenticated: A key is needed, or this one is not valid.
        """
        sent_key = _key_in(headers)
        is_open = self.open
        if sent_key is None or (is_open and not sent_key.startswith(KEY_PREFIX)):
            if is_open:
                return ANONYMOUS
            raise Unauthenticated(_KEY_NEEDED)
        key = self._keys.find(sent_key)
        if key is None:
            raise Unauthenticated(
                "the API key is not valid: it was mistyped, revoked, or has expired"
            )
        return self._principal(key)

    async def admit(self, principal: Principal, scope: str, *, counted: bool) -> None:
        """Let a request through.

        Args:
            principal: The sender.
            scope: What the request needs.
            counted: Whether it counts against requests per minute.

        Raises:
            Forbidden: The key lacks the scope.
            QuotaExceeded: A rate of the key or the tenant is used up.
        """
        if scope not in principal.scopes:
            raise Forbidden(
                f"the API key {principal.key_id} lacks the scope {scope!r} (it has "
                f"{', '.join(sorted(principal.scopes)) or 'none'}): use another key"
            )
        if counted:
            await self._quotas.enter(principal.tenant, principal.key_id, principal.limits)

    def _principal(self, key: StoredKey) -> Principal:
        def spend(tokens: int) -> None:
            self._quotas.spend(key.tenant, key.key_id, key.limits, tokens)

        return Principal(
            key.tenant, key.key_id, key.scopes, key.limits, spend, key.adapter, key.view
        )


def _key_in(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key", "").strip() or None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
