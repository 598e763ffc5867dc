"""What is added to a gateway: sign-in to the console, and where clients find the issuer.

GET /ui/sign-in                               whose people sign in, or nobody's
GET /ui/sign-in/provider                      where the browser goes, and what it says there
POST /ui/sign-in                              the code that it comes back with, for a token
GET /.well-known/oauth-protected-resource     whose tokens are taken

They need no key, as the console's files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from kvstitch.service.errors import NotFound, SignInRefused
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.http.dependencies import GatewayDep
from kvstitch.service.gateway.schemas.fields import StrictModel
from kvstitch.service.plugins import GatewayPart
from kvstitch_oidc.resource_metadata import MCP_PATH, PATH, metadata

if TYPE_CHECKING:
    from kvstitch_oidc.sign_in import SignIn

router = APIRouter(include_in_schema=False)
NEVER_KEPT = {"Cache-Control": "no-store"}


class Code(StrictModel):
    """What the browser came back with, and what it had kept."""

    code: str = Field(min_length=1, max_length=8192)
    verifier: str = Field(pattern=r"^[A-Za-z0-9._~-]{43,128}$")
    nonce: str = Field(min_length=16, max_length=256)
    redirect_uri: str = Field(max_length=2048)


@router.get("/ui/sign-in")
async def offered(gateway: GatewayDep) -> dict[str, str | None]:
    sign_in = _part(gateway).sign_in
    return {"issuer": None if sign_in is None else sign_in.issuer}


@router.get("/ui/sign-in/provider")
async def provider(gateway: GatewayDep) -> dict[str, Any]:
    found = await _sign_in(gateway).provider()
    return {
        "authorization_endpoint": found.authorize,
        "end_session_endpoint": found.end_session,
        "parameters": found.parameters,
    }


@router.post("/ui/sign-in")
async def redeem(
    body: Code,
    request: Request,
    response: Response,
    gateway: GatewayDep,
    origin: Annotated[str, Header()] = "",
) -> dict[str, str | int]:
    """The browser's own origin is where it must have been sent back to."""
    sign_in = _sign_in(gateway)
    at = urlsplit(body.redirect_uri)
    if not origin or f"{at.scheme}://{at.netloc}" != origin or not at.path.endswith("/ui/"):
        raise SignInRefused("only the console exchanges a code, for the page that it is at")
    redeemed = await sign_in.redeem(
        body.code, body.verifier, nonce=body.nonce, redirect_uri=body.redirect_uri
    )
    request.state.principal = gateway.access.principal(redeemed.identity)  # for the audit log
    response.headers.update(NEVER_KEPT)
    return {
        "token": redeemed.token,
        "subject": redeemed.identity.subject,
        "name": redeemed.name,
        "expires": redeemed.expires,
        "id_token": redeemed.id_token,
    }


@router.get(PATH)
@router.get(f"{PATH}{MCP_PATH}")
async def protected_resource(request: Request, gateway: GatewayDep) -> dict[str, Any]:
    settings: Any = gateway.settings
    if not settings.oidc_issuer:
        raise NotFound("no tokens are taken here: KVSTITCH_OIDC_ISSUER is not set")
    return metadata(request, settings, request.url.path.removeprefix(PATH))


class OidcPart(GatewayPart):
    """The routes, and the console's client at the issuer where there is one."""

    routers = (router,)

    def __init__(self, gateway: Gateway) -> None:
        settings: Any = gateway.settings
        self.sign_in: SignIn | None = None
        if settings.oidc_issuer and settings.oidc_client_id:
            from kvstitch_oidc.sign_in import SignIn  # needs PyJWT
            from kvstitch_oidc.tokens import TokenVerifier

            assert isinstance(gateway.tokens, TokenVerifier)
            self.sign_in = SignIn(settings, gateway.tokens)


def _part(gateway: Gateway) -> OidcPart:
    return next(part for part in gateway.parts if isinstance(part, OidcPart))


def _sign_in(gateway: Gateway) -> SignIn:
    if (sign_in := _part(gateway).sign_in) is None:
        raise NotFound("nobody signs in here: KVSTITCH_OIDC_CLIENT_ID is not set")
    return sign_in
