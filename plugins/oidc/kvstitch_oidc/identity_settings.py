"""Tokens of an identity provider (JWT), taken beside API keys: whose, and what they say."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from kvstitch.service.settings.fields import ADDRESS, SCOPES, parts
from kvstitch.service.shared.fleet_secret import is_loopback

# What proves who signed: never `none`, and never HMAC, whose key would have to be ours as well.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
OWN_PARAMETERS = (
    "client_id", "client_secret", "code", "code_challenge", "code_challenge_method",
    "code_verifier", "grant_type", "nonce", "redirect_uri", "response_mode", "response_type",
    "scope", "state",
)  # fmt: skip
EVERY_TOKEN = "*"  # in oidc_scopes
QUOTAS = ("documents", "bytes", "requests_per_minute", "tokens_per_minute")


class IdentitySettings(BaseModel):
    """Whose tokens are taken, and which of their claims say what the sender may do."""

    oidc_issuer: str = Field(
        "", description="whose tokens are taken, as `iss` in them says; empty: API keys only"
    )
    oidc_audience: str = Field(
        "",
        validate_default=True,
        description="what `aud` of a token has to name, one of these by commas",
    )
    oidc_jwks: str = Field(
        "",
        validate_default=True,
        description="URL or file of the issuer's public keys; empty: as "
        "oidc_issuer/.well-known/openid-configuration says",
        repr=False,
        json_schema_extra=ADDRESS,
    )
    oidc_algorithms: str = Field(
        "RS256,PS256,ES256,EdDSA", description="signatures that are taken, by commas"
    )
    oidc_clock_skew_s: float = Field(
        60.0, ge=0, le=600, description="how far the issuer's clock may be from ours"
    )
    oidc_refresh_s: float = Field(300.0, gt=0, description="then the public keys are read again")
    oidc_refetch_s: float = Field(
        10.0, gt=0, description="pause between reads that an unknown key of a token asks for"
    )
    oidc_max_age_s: float = Field(
        86_400.0,
        gt=0,
        description="how long public keys hold that cannot be read again; then 503",
    )
    oidc_tenant: str = Field("", max_length=64, description="tenant of all tokens")
    oidc_tenant_claim: str = Field(
        "", description="claim that says the tenant instead; a token without it is refused"
    )
    oidc_scopes_claim: str = Field("scope", description="claim from which scopes come")
    oidc_scopes: str = Field(
        "",
        description="VALUE=SCOPE by commas: which value of that claim gives which scope, *: every "
        "token; empty: values that are called as scopes are",
    )
    oidc_groups_claim: str = Field("groups", description="claim that lists the groups")
    oidc_all_groups: str = Field(
        "", description="the group whose members read all documents of their tenant"
    )
    oidc_quotas: str = Field(
        "", description=f"QUOTA=CLAIM by commas, of {', '.join(QUOTAS)}: which claim limits what"
    )
    oidc_client_id: str = Field(
        "", description="the console's client at the issuer; empty: nobody signs in there"
    )
    oidc_client_secret: str = Field(
        "", description="its secret; empty: it is a public client", repr=False
    )
    oidc_client_scopes: str = Field(
        "openid profile", description="scopes that the console asks for"
    )
    oidc_client_parameters: str = Field(
        "",
        description="NAME=VALUE by commas: more parameters of signing in, as resource=… or "
        "audience=…, where the issuer wants to be told for which service a token is",
    )

    @field_validator("oidc_audience")
    @classmethod
    def _named(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("oidc_issuer") and not parts(value):
            raise ValueError(
                "must name what tokens for this service are issued for, else tokens for other "
                "services of the issuer would be taken too"
            )
        return value

    @field_validator("oidc_jwks")
    @classmethod
    def _private_way(cls, value: str, info: ValidationInfo) -> str:
        source = value or info.data.get("oidc_issuer", "")
        if source and not value and not source.startswith(("http://", "https://")):
            raise ValueError("must be set where oidc_issuer is no URL")
        if source.startswith("http://") and not is_loopback(urlsplit(source).hostname or ""):
            raise ValueError(
                f"keys would come from {source}, where whoever is in between could give others: "
                "use https://, or a file"
            )
        return value

    @field_validator("oidc_client_id")
    @classmethod
    def _of_a_provider(cls, value: str, info: ValidationInfo) -> str:
        issuer = info.data.get("oidc_issuer", "")
        if value and not issuer.startswith(("http://", "https://")):
            raise ValueError("needs an oidc_issuer that is a URL: people sign in there")
        if (
            value
            and issuer.startswith("http://")
            and not is_loopback(urlsplit(issuer).hostname or "")
        ):
            raise ValueError(f"people would sign in at {issuer} without TLS: use https://")
        return value

    @field_validator("oidc_client_scopes")
    @classmethod
    def _with_openid(cls, value: str) -> str:
        if "openid" not in value.split():
            raise ValueError("must hold 'openid', else the issuer does not say who signed in")
        return value

    @field_validator("oidc_client_parameters")
    @classmethod
    def _pairs(cls, value: str) -> str:
        for part in parts(value):
            name, _, given = part.partition("=")
            if not name or not given or name in OWN_PARAMETERS:
                raise ValueError(
                    f"{part!r} must be NAME=VALUE, and no parameter of the console's own"
                )
        return value

    @field_validator("oidc_algorithms")
    @classmethod
    def _asymmetric(cls, value: str) -> str:
        for name in parts(value):
            if name not in ALGORITHMS:
                raise ValueError(f"{name!r} cannot be used: choose of {', '.join(ALGORITHMS)}")
        if not parts(value):
            raise ValueError(f"must name one of {', '.join(ALGORITHMS)}")
        return value

    @field_validator("oidc_scopes")
    @classmethod
    def _known_scopes(cls, value: str) -> str:
        for part in parts(value):
            given, _, scope = part.rpartition("=")
            if not given or scope not in SCOPES:
                raise ValueError(f"{part!r} must be VALUE=SCOPE, a scope of {', '.join(SCOPES)}")
        return value

    @field_validator("oidc_quotas")
    @classmethod
    def _known_quotas(cls, value: str) -> str:
        for part in parts(value):
            quota, _, claim = part.partition("=")
            if quota not in QUOTAS or not claim:
                raise ValueError(f"{part!r} must be QUOTA=CLAIM, a quota of {', '.join(QUOTAS)}")
        return value
