"""Where clients find the issuer of tokens: OAuth 2.0 Protected Resource Metadata (RFC 9728).

Clients of MCP ask without a token first; the 401 leads them to the metadata, and these to the
issuer.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request

from kvstitch.service.settings.fields import SCOPES, parts
from kvstitch_oidc.identity_settings import EVERY_TOKEN

PATH: Final = "/.well-known/oauth-protected-resource"
MCP_PATH: Final = "/mcp"
OF_MCP: Final = ("generate", "admin")  # what its tools need
OAUTH_CLAIM: Final = "scope"  # holds what a client has asked for; roles and the like do not


def metadata(request: Request, settings: Any, resource: str) -> dict[str, Any]:
    """Return the metadata of a resource, which is the path of a route; "": the whole service."""
    found: dict[str, Any] = {
        "resource": f"{_base(request, settings)}{resource}",
        "authorization_servers": [settings.oidc_issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "kvstitch",
    }
    if scopes := _asked_for(settings, OF_MCP if resource == MCP_PATH else SCOPES):
        found["scopes_supported"] = scopes
    return found


def metadata_url(request: Request) -> str | None:
    """Return where the metadata of what was asked for is; None: clients are not led there."""
    if request.url.path != MCP_PATH:
        return None
    settings = request.app.state.gateway.settings
    return f"{_base(request, settings)}{PATH}{MCP_PATH}"


def _base(request: Request, settings: Any) -> str:
    return str(settings.public_url or request.base_url).rstrip("/")


def _asked_for(settings: Any, needed: tuple[str, ...]) -> list[str]:
    """Return what a client asks the issuer for to be given these scopes."""
    if settings.oidc_scopes_claim != OAUTH_CLAIM:
        return []
    pairs = [part.rpartition("=") for part in parts(settings.oidc_scopes)]
    given = [(value, scope) for value, _, scope in pairs] or [(scope, scope) for scope in SCOPES]
    return [value for value, scope in given if scope in needed and value != EVERY_TOKEN]
