"""People sign in to the console at the issuer: authorisation code with PKCE (RFC 7636, RFC 9700).

    browser   makes state, nonce and the PKCE verifier, and keeps them for its tab
    issuer    asks who it is, and sends the browser back with a code
    gateway   exchanges the code, as the issuer's client, and verifies what comes
    browser   sends the token as it would a key

Nothing of it is kept here: any gateway of a fleet may exchange any code. There are no cookies, so
no page of others can act in somebody's name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from kvstitch.service.errors import IdentityUnavailable, InvalidToken, SignInRefused
from kvstitch.service.gateway.auth.keys import Sender
from kvstitch.service.settings.fields import parts
from kvstitch_oidc.identity_settings import IdentitySettings
from kvstitch_oidc.signing_keys import endpoint, request_json
from kvstitch_oidc.tokens import TokenVerifier

MAX_EXCHANGES = 8  # at a time; anybody may ask for one
MAX_NAME_CHARS = 100
NAMES = ("name", "preferred_username", "email")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Provider:
    """Where a browser goes."""

    authorize: str
    end_session: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Redeemed:
    """What a code was good for."""

    token: str
    identity: Sender
    name: str
    expires: int
    id_token: str


class SignIn:
    """The console's client at the issuer, on one event loop."""

    def __init__(self, settings: IdentitySettings, tokens: TokenVerifier) -> None:
        self._tokens = tokens
        self._client = settings.oidc_client_id
        self._secret = settings.oidc_client_secret
        self._scopes = settings.oidc_client_scopes
        pairs = [part.partition("=") for part in parts(settings.oidc_client_parameters)]
        self._more = {name: value for name, _, value in pairs}
        self._refresh_s = settings.oidc_refresh_s
        self._described: Mapping[str, Any] = {}
        self._described_at = float("-inf")
        self._exchanges = asyncio.Semaphore(MAX_EXCHANGES)

    @property
    def issuer(self) -> str:
        return self._tokens.issuer.name

    async def provider(self) -> Provider:
        """Return where to sign in.

        Raises:
            IdentityUnavailable: The issuer does not say.
        """
        described = await self._description()
        try:
            authorize = endpoint(described, "authorization_endpoint")
        except ValueError as error:
            raise _unavailable(error) from error
        parameters = {
            **self._more,
            "client_id": self._client,
            "scope": self._scopes,
            "response_type": "code",
        }
        end_session = described.get("end_session_endpoint")
        return Provider(authorize, end_session if isinstance(end_session, str) else "", parameters)

    async def redeem(self, code: str, verifier: str, *, nonce: str, redirect_uri: str) -> Redeemed:
        """Exchange a code for a token.

        Args:
            code: From the issuer, by way of the browser.
            verifier: Of PKCE, that the browser made.
            nonce: That it sent along.
            redirect_uri: Where the issuer sent it back to.

        Raises:
            SignInRefused: The issuer does not take the code, or who signed in is another one.
            InvalidToken: It gives no token that this service takes.
            IdentityUnavailable: It cannot be asked.
        """
        sent = {
            **self._more,
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "client_id": self._client,
        }
        described = await self._description()
        async with self._exchanges:
            try:
                status, given = await request_json(
                    "POST",
                    endpoint(described, "token_endpoint"),
                    **self._authenticated(sent, described),
                )
            except (ValueError, TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
                raise _unavailable(error) from error
        if status != 200 or not isinstance(given, dict):
            raise _refused(status, given)
        return await self._verified(given, nonce)

    async def _verified(self, given: Mapping[str, Any], nonce: str) -> Redeemed:
        id_token, access_token = given.get("id_token"), given.get("access_token")
        if not isinstance(id_token, str):
            raise SignInRefused("the issuer does not say who signed in: it gave no ID token")
        who = await self._tokens.claims(id_token, [self._client])
        if who.get("nonce") != nonce:
            raise SignInRefused("the ID token is not of this sign-in (nonce): sign in again")
        token, claims = await self._usable(access_token, id_token)
        identity = self._tokens.identity(claims)
        if identity.subject != who["sub"]:
            raise SignInRefused("the issuer gave tokens of two people: sign in again")
        names = [who[claim] for claim in NAMES if isinstance(who.get(claim), str)]
        name = (names or [identity.subject])[0][:MAX_NAME_CHARS]
        return Redeemed(token, identity, name, int(claims["exp"]), id_token)

    async def _usable(self, access_token: Any, id_token: str) -> tuple[str, Mapping[str, Any]]:
        """Return the access token and its claims if it is for this service, else the ID token's."""
        refused: InvalidToken | None = None
        if isinstance(access_token, str) and access_token.count(".") == 2:
            try:
                return access_token, await self._tokens.claims(access_token)
            except InvalidToken as error:
                refused = error
        if self._client in self._tokens.audiences:
            return id_token, await self._tokens.claims(id_token)
        raise refused or InvalidToken(
            "the issuer gives no token for this service: let it issue JWTs for oidc_audience "
            "(oidc_client_parameters may have to say resource=… or audience=…), or name the "
            "client in oidc_audience, so that ID tokens are taken"
        )

    def _authenticated(
        self, sent: Mapping[str, str], described: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the request's form, and who sends it (RFC 6749, 2.3.1)."""
        if not self._secret:
            return {"data": sent}
        ways = described.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if "client_secret_basic" not in ways and "client_secret_post" in ways:
            return {"data": {**sent, "client_secret": self._secret}}
        auth = httpx.BasicAuth(quote(self._client, safe=""), quote(self._secret, safe=""))
        return {"data": sent, "auth": auth}

    async def _description(self) -> Mapping[str, Any]:
        if time.monotonic() - self._described_at > self._refresh_s:
            try:
                self._described = await self._tokens.issuer.described()
            except (ValueError, TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
                raise _unavailable(error) from error
            self._described_at = time.monotonic()
        return self._described


def _unavailable(error: Exception) -> IdentityUnavailable:
    logger.warning("nobody can sign in: %s: %s", type(error).__name__, error)
    return IdentityUnavailable(
        "the issuer cannot be asked at the moment, so nobody can sign in: try again; API keys go "
        "on working"
    )


def _refused(status: int, given: Any) -> SignInRefused:
    said = given if isinstance(given, dict) else {}
    code, why = (str(said.get(name, ""))[:200] for name in ("error", "error_description"))
    if code != "invalid_grant":  # which is the browser's; others are of settings
        logger.warning("the issuer refuses to exchange a code: %s %s %s", status, code, why)
    told = f"{code or status}: {why}" if why else code or status
    return SignInRefused(f"the issuer does not take this sign-in ({told}): sign in again")
