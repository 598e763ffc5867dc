"""Who a request is from and what it may do. Knows keys and limits; no route and no use case.

    header ── key ── store ── Principal(tenant, scopes) ── scope asked for ── limits ── route

A service without keys is open, and everybody is ANONYMOUS. From the first key on a request needs
one, unless `allow_anonymous`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from service.errors import Forbidden, InvalidSetting, Unauthenticated
from service.gateway.auth.key_text import KEY_PREFIX, SCOPES
from service.gateway.auth.keys import KeyStore, StoredKey
from service.gateway.auth.quotas import Limits, Quotas

MISSING: Final = (
    "an API key is needed: send it as `Authorization: Bearer kvs_…` or `x-api-key: kvs_…` "
    "(`kvstitch keys create` makes one)"
)


def _nothing(tokens: int) -> None:
    """Where no tokens are counted."""


@dataclass(frozen=True)
class Principal:
    """Whoever sent a request. Tenant "" is that of a service without keys.

    `spend_tokens` counts tokens of prompt and answer against what the key and its tenant may use.
    """

    tenant: str
    key_id: str
    scopes: frozenset[str]
    limits: Limits = field(default_factory=Limits)
    spend_tokens: Callable[[int], None] = field(default=_nothing, compare=False, repr=False)


ANONYMOUS = Principal("", "", frozenset(SCOPES))


class Access:
    """Asks the key store at every request, so that a revoked key is refused at once."""

    def __init__(self, keys: KeyStore, quotas: Quotas, *, allow_anonymous: bool) -> None:
        self._keys = keys
        self._quotas = quotas
        self._allow_anonymous = allow_anonymous

    @property
    def open(self) -> bool:
        """Whether a request without a key is served."""
        return self._allow_anonymous or not self._keys.any()

    def check_exposure(self, host: str) -> None:
        """Raises InvalidSetting if strangers could use the service at that address."""
        if self.open and not self._allow_anonymous and not is_loopback(host):
            raise InvalidSetting(
                f"host is {host}, which others can reach, and there is no API key: make one with "
                "`kvstitch keys create`, or set KVSTITCH_ALLOW_ANONYMOUS=true if something else "
                "decides who gets through"
            )

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The sender of a request by its headers. Raises Unauthenticated."""
        given = _key_in(headers)
        is_open = self.open
        if given is None or (is_open and not given.startswith(KEY_PREFIX)):
            if is_open:
                return ANONYMOUS
            raise Unauthenticated(MISSING)
        key = self._keys.find(given)
        if key is None:
            raise Unauthenticated(
                "the API key is not valid: it was mistyped, revoked, or has expired"
            )
        return self._principal(key)

    def admit(self, principal: Principal, scope: str, *, counted: bool) -> None:
        """Let a request through that needs `scope`; `counted`: against requests per minute.

        Raises Forbidden, QuotaExceeded.
        """
        if scope not in principal.scopes:
            raise Forbidden(
                f"the API key {principal.key_id} lacks the scope {scope!r} (it has "
                f"{', '.join(sorted(principal.scopes)) or 'none'}): use another key"
            )
        if counted:
            self._quotas.enter(principal.tenant, principal.key_id, principal.limits)

    def _principal(self, key: StoredKey) -> Principal:
        def spend(tokens: int) -> None:
            self._quotas.spend(key.tenant, key.key_id, key.limits, tokens)

        return Principal(key.tenant, key.key_id, key.scopes, key.limits, spend)


def _key_in(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key", "").strip() or None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
