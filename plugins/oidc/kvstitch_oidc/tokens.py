"""Verifies tokens of an issuer (JWT), and says who sends them.

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

from kvstitch_oidc.claims import ClaimReader
from kvstitch_oidc.identity_settings import IdentitySettings
from kvstitch_oidc.issuer import Issuer
from kvstitch_oidc.resource_metadata import metadata_url
from kvstitch_oidc.signing_keys import SigningKeys
from service.errors import InvalidToken
from service.gateway.auth.keys import Sender
from service.settings.fields import parts

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
