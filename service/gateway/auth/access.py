"""Decides who a request is from and what it may do.

    header ─┬─ key ─── key store ─┬─ Principal(tenant, view) ── required scope ── quotas ── route
            └─ token ─ issuer ────┘

A service without keys and without an issuer of tokens is open, and every sender is ANONYMOUS. As
soon as the first key has been made, or an issuer is set, every request needs one, unless
`allow_anonymous` is set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kvstitch.service.errors import Forbidden, InvalidSetting, Unauthenticated
from kvstitch.service.gateway.auth.keys import KEY_PREFIX, SUBJECT, KeyStore, Sender
from kvstitch.service.gateway.auth.quotas import Quotas
from kvstitch.service.plugins import IdentityProvider
from kvstitch.service.settings.fields import SCOPES
from kvstitch.service.shared.fleet_secret import is_loopback

_KEY_NEEDED: Final = (
    "an API key is needed: send it as `Authorization: Bearer kvs_…` or `x-api-key: kvs_…` "
    "(`kvstitch keys create` makes one)"
)
_KEY_OR_TOKEN_NEEDED: Final = (
    "an API key or a token is needed: send it as `Authorization: Bearer …`; the issuer of tokens "
    "that is set gives you one"
)


@dataclass(frozen=True)
class Principal(Sender):
    """The sender of a request."""

    # Counts tokens of prompt and answer against the quotas of key and tenant.
    spend_tokens: Callable[[int], None] = field(
        default=lambda tokens: None, compare=False, repr=False
    )

    @property
    def credential(self) -> str:
        """What it was let in by, for messages."""
        if self.key_id.startswith(SUBJECT):
            return f"the token of {self.subject}"
        return f"the API key {self.key_id}"


ANONYMOUS = Principal("", "", frozenset(SCOPES))


class Access:
    """Looks every key up anew, so that a revoked key is refused as soon as it is known. Without
    `tokens`, which verifies what is no API key, no tokens are taken."""

    def __init__(
        self,
        keys: KeyStore,
        quotas: Quotas,
        *,
        allow_anonymous: bool,
        tokens: IdentityProvider | None = None,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._quotas = quotas
        self._allow_anonymous = allow_anonymous

    @property
    def open(self) -> bool:
        """Whether a request without a key or token is served."""
        return self._allow_anonymous or (self._tokens is None and not self._keys.any())

    def check_exposure(self, host: str) -> None:
        """Raise InvalidSetting if anyone could use the service at this address without a key."""
        if self.open and not self._allow_anonymous and not is_loopback(host):
            raise InvalidSetting(
                f"host is {host}, which others can reach, and there is no API key: make one with "
                "`kvstitch keys create`, set KVSTITCH_OIDC_ISSUER, or set "
                "KVSTITCH_ALLOW_ANONYMOUS=true if something else decides who gets through"
            )

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Return the sender of a request with these headers. Raises Unauthenticated, or
        IdentityUnavailable if a token cannot be verified now."""
        sent_key = _key_in(headers)
        if self._tokens is not None and sent_key is not None and _is_token(sent_key):
            sender: Sender = await self._tokens.verify(sent_key)
            return self.principal(sender)
        is_open = self.open
        if sent_key is None or (is_open and not sent_key.startswith(KEY_PREFIX)):
            if is_open:
                return ANONYMOUS
            raise Unauthenticated(_KEY_NEEDED if self._tokens is None else _KEY_OR_TOKEN_NEEDED)
        key = self._keys.find(sent_key)
        if key is None:
            raise Unauthenticated(
                "the API key is not valid: it was mistyped, revoked, or has expired"
            )
        return self.principal(key)

    async def admit(self, principal: Principal, scope: str, *, counted: bool) -> None:
        """Let a request through, which counts against requests per minute if `counted`. Raises
        Forbidden if the key lacks the scope, QuotaExceeded if a rate is used up."""
        if scope not in principal.scopes:
            raise Forbidden(
                f"{principal.credential} lacks the scope {scope!r} (it has "
                f"{', '.join(sorted(principal.scopes)) or 'none'}): use another key"
            )
        if counted:
            await self._quotas.enter(principal.tenant, principal.key_id, principal.limits)

    def principal(self, sender: Sender) -> Principal:
        """Return a sender whose key or token was verified."""
        spend = partial(self._quotas.spend, sender.tenant, sender.key_id, sender.limits)
        return Principal(
            sender.tenant, sender.key_id, sender.scopes, sender.limits, sender.adapter, sender.view,
            sender.writes, spend,
        )  # fmt: skip


def _key_in(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key", "").strip() or None


def _is_token(text: str) -> bool:
    """Return whether a text has the three parts of a JWT; no other key that is sent has them."""
    return text.count(".") == 2 and not text.startswith(KEY_PREFIX)
