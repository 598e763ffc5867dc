"""Tokens of an identity provider (JWT) beside API keys, and sign-in to the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstitch.service.plugins import GatewayPart, IdentityProvider, hookimpl

if TYPE_CHECKING:
    from pydantic import BaseModel


@hookimpl
def settings() -> type[BaseModel]:
    from kvstitch_oidc.identity_settings import IdentitySettings

    return IdentitySettings


@hookimpl
def identity_provider(settings: Any) -> IdentityProvider | None:
    if not settings.oidc_issuer:
        return None
    try:
        from kvstitch_oidc.tokens import TokenVerifier
    except ImportError as error:
        from kvstitch.service.errors import InvalidSetting

        raise InvalidSetting(
            "oidc_issuer is set, and PyJWT is not installed: pip install 'kvstitch[oidc]'"
        ) from error
    return TokenVerifier(settings)


@hookimpl
def gateway_part(gateway: Any) -> GatewayPart:
    from kvstitch_oidc.part import OidcPart

    return OidcPart(gateway)
