"""Verifies tokens of an issuer (JWT), and says by their claims who sends them, and what they may.

Nothing in a token decides how it is verified: its `alg` must be on the settings' list, which holds
asymmetric ones only, and must be what the named key of the issuer is for. So `none`, and a public
key used as a secret, are refused before any signature is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jwt
from jwt import exceptions
from starlette.requests import Request

from kvstitch.retriever.scope import EVERYTHING, View, is_group
from kvstitch.service.errors import InvalidToken
from kvstitch.service.gateway.auth.keys import SUBJECT, Sender
from kvstitch.service.gateway.auth.quotas import Limits
from kvstitch.service.gateway.schemas.fields import composed
from kvstitch.service.settings.fields import SCOPES, parts
from kvstitch_oidc.identity_settings import EVERY_TOKEN, IdentitySettings
from kvstitch_oidc.resource_metadata import metadata_url
from kvstitch_oidc.signing_keys import Issuer, SigningKeys

MAX_SUBJECT_CHARS = 255  # OpenID Connect's own limit
MAX_TENANT_CHARS = 64
_LEAST = {"documents": 0, "bytes": 0, "requests_per_minute": 1, "tokens_per_minute": 1}


class ClaimReader:
    """Reads claims as the settings say."""

    def __init__(self, settings: IdentitySettings) -> None:
        self._settings = settings
        pairs = [part.rpartition("=") for part in parts(settings.oidc_scopes)]
        self._scopes = [(value, scope) for value, _, scope in pairs] or [
            (scope, scope) for scope in SCOPES
        ]
        quotas = [part.partition("=") for part in parts(settings.oidc_quotas)]
        self._quotas = {quota: claim for quota, _, claim in quotas}

    def identity(self, claims: Mapping[str, Any]) -> Sender:
        """Return what the claims say."""
        return Sender(
            tenant=self._tenant(claims),
            key_id=f"{SUBJECT}{self._subject(claims)}",
            scopes=self._granted(claims),
            view=self._view(claims),
            limits=Limits(**{quota: _limit(claims, quota, claim)
                             for quota, claim in self._quotas.items()}),
        )  # fmt: skip

    def _subject(self, claims: Mapping[str, Any]) -> str:
        subject = _text(claims, "sub", MAX_SUBJECT_CHARS)
        if not subject:
            raise _missing("sub")
        return subject

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        claim = self._settings.oidc_tenant_claim
        if not claim:
            return self._settings.oidc_tenant
        tenant = _text(claims, claim, MAX_TENANT_CHARS)
        if not tenant:  # "" would be the unnamed tenant, which may be somebody else's
            raise _missing(claim)
        return tenant

    def _granted(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """Return the scopes; without the claim, those that every token has."""
        given = {*_texts(claims, self._settings.oidc_scopes_claim, split=True)}
        return frozenset(
            scope for value, scope in self._scopes if value == EVERY_TOKEN or value in given
        )

    def _view(self, claims: Mapping[str, Any]) -> View:
        """Return what may be read; without the claim, documents without readers only."""
        groups = _texts(claims, self._settings.oidc_groups_claim, split=False)
        if (all_groups := self._settings.oidc_all_groups) and all_groups in groups:
            return EVERYTHING
        # What can be no group's name can be nobody's readers either; `*` among it.
        return View(frozenset(name for name in map(composed, groups) if is_group(name)))


def _find(claims: Mapping[str, Any], claim: str) -> Any:
    if claim in claims:
        return claims[claim]
    found: Any = claims
    for name in claim.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def _text(claims: Mapping[str, Any], claim: str, most: int) -> str:
    value = _find(claims, claim)
    if value is None:
        raise _missing(claim)
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise _wrong(claim, f"must be a text of up to {most} printable characters")
    return value


def _texts(claims: Mapping[str, Any], claim: str, *, split: bool) -> list[str]:
    """Return a list of texts, or a text as one: of several between blanks where `split` is set."""
    value = _find(claims, claim)
    if value is None:
        return []
    if isinstance(value, str):
        return value.split() if split else [value]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(claim, "must be a list of texts")
    return value


def _limit(claims: Mapping[str, Any], quota: str, claim: str) -> int | None:
    """Return a quota; None without the claim: then the tenant's alone holds."""
    value = _find(claims, claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not _LEAST[quota] <= value < 2**63:
        raise _wrong(claim, f"must be a whole number of at least {_LEAST[quota]}")
    return value


def _missing(claim: str) -> InvalidToken:
    return InvalidToken(f"the token lacks the claim {claim!r}", field=claim)


def _wrong(claim: str, rule: str) -> InvalidToken:
    return InvalidToken(f"the token's claim {claim!r} {rule}", field=claim)


MAX_TOKEN_CHARS = 16_384
NEEDED = ("iss", "aud", "exp", "sub")
AGAIN = "sign in again"


class TokenVerifier:
    """Verifies the tokens of one issuer, on one event loop.

    Args:
        settings: Of the issuer; `oidc_issuer` is set.
    """

    def __init__(self, settings: IdentitySettings) -> None:
        self.issuer = Issuer(settings.oidc_issuer, settings.oidc_jwks)
        self._keys = SigningKeys(
            self.issuer,
            refresh_s=settings.oidc_refresh_s,
            refetch_s=settings.oidc_refetch_s,
            max_age_s=settings.oidc_max_age_s,
        )
        self._claims = ClaimReader(settings)
        self._algorithms = parts(settings.oidc_algorithms)
        self.audiences = parts(settings.oidc_audience)
        self._skew_s = settings.oidc_clock_skew_s

    async def close(self) -> None:
        await self._keys.close()

    def metadata_url(self, request: Request) -> str | None:
        """Return where clients of MCP find the issuer; others are not led there."""
        return metadata_url(request)

    async def verify(self, token: str) -> Sender:
        """Return who sends a token.

        Raises:
            InvalidToken: It is not valid; `field` is the claim or the part of its header that is
                wrong.
            IdentityUnavailable: The issuer's keys cannot be read.
        """
        return self.identity(await self.claims(token))

    def identity(self, claims: Mapping[str, Any]) -> Sender:
        """Return what the claims of a verified token say; raises InvalidToken."""
        return self._claims.identity(claims)

    async def claims(self, token: str, audiences: Sequence[str] = ()) -> Mapping[str, Any]:
        """Return what a token of this issuer says, if it is for one of these audiences."""
        if len(token) > MAX_TOKEN_CHARS:
            raise InvalidToken(f"the token has more than {MAX_TOKEN_CHARS} characters")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if not isinstance(algorithm, str) or algorithm not in self._algorithms:
                raise InvalidToken(
                    f"tokens that are signed by {str(algorithm)[:20]!r} are not taken, only "
                    f"{', '.join(self._algorithms)}",
                    field="alg",
                )
            key = await self._keys.find(key_id, algorithm)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=audiences or self.audiences,
                issuer=self.issuer.name,
                leeway=self._skew_s,
                options={"require": list(NEEDED), "enforce_minimum_key_length": True},
            )
        except exceptions.PyJWTError as error:
            raise _refusal(error) from error
        return claims


def _refusal(error: exceptions.PyJWTError) -> InvalidToken:
    match error:
        case exceptions.ExpiredSignatureError():
            return InvalidToken(f"the token has expired: {AGAIN}", field="exp")
        case exceptions.ImmatureSignatureError():
            return InvalidToken(
                "the token is not valid yet (nbf, iat): is a clock wrong?", field="nbf"
            )
        case exceptions.InvalidAudienceError():
            return InvalidToken(
                "the token was issued for another service: its `aud` is none of oidc_audience",
                field="aud",
            )
        case exceptions.InvalidIssuerError():
            return InvalidToken(
                "the token is of another issuer: its `iss` is not oidc_issuer", field="iss"
            )
        case exceptions.MissingRequiredClaimError():
            return InvalidToken(f"the token lacks the claim {error.claim!r}", field=error.claim)
        case exceptions.InvalidSignatureError():
            return InvalidToken(
                "the token's signature is wrong: it was changed, or signed by somebody else",
                field="signature",
            )
        case exceptions.InvalidSubjectError():
            return InvalidToken("the token's claim 'sub' must be a text", field="sub")
    return InvalidToken(f"the token is malformed ({error})")
