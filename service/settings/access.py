"""Where the service listens, who may use it, and how much."""

from __future__ import annotations

import re

from pydantic import BaseModel, Field, field_validator

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", re.IGNORECASE)


class AccessSettings(BaseModel):
    """Where the service listens, who may use it, and how much."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    allow_anonymous: bool = Field(
        False, description="serve without API keys, also on addresses that others can reach"
    )
    allowed_hosts: str = Field(
        "",
        description="names in the Host header, separated by commas, *: any; "
        "empty: loopback names where host is one, else any",
    )
    allowed_origins: str = Field(
        "", description="other sites whose pages may write, https://host:port, by commas; *: any"
    )
    cors_origins: str = Field(
        "",
        description="other sites whose pages may use the API, reading included, "
        "https://host:port, by commas; *: any; empty: none",
    )
    tenant_secret: str = Field("", pattern=r"^([0-9a-fA-F]{2})*$", description="hex; keys chunks")
    tenant_max_documents: int | None = Field(None, ge=0)
    tenant_max_bytes: int | None = Field(None, ge=0, description="text stored, UTF-8")
    tenant_requests_per_minute: int | None = Field(None, ge=1)
    tenant_tokens_per_minute: int | None = Field(None, ge=1, description="of prompt and answer")
    max_in_flight_per_key: int = Field(
        0, ge=0, description="answers of one API key at a time; 0: half of all that may be"
    )

    @field_validator("cors_origins")
    @classmethod
    def _exact_origins(cls, value: str) -> str:
        for origin in filter(None, map(str.strip, value.split(","))):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin: write scheme://host or scheme://host:port, "
                    "without a path, as browsers send it"
                )
        return value
