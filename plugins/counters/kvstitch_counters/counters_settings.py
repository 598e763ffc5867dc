"""Where requests and tokens are counted."""

from __future__ import annotations

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from kvstitch.service.settings.fields import ADDRESS, RedisUrl


class CountersSettings(BaseModel):
    """Where requests and tokens are counted."""

    counters_url: RedisUrl = Field(
        "",
        description="Redis that counts requests and tokens per minute for all gateways together, "
        "redis://host:port/db or redis+cluster://host:port,host:port; empty: each counts its own",
        repr=False,
        json_schema_extra=ADDRESS,
    )

    @field_validator("counters_url")
    @classmethod
    def _same_names_everywhere(cls, value: str, info: ValidationInfo) -> str:
        if value and not (info.data.get("database") or info.data.get("tenant_secret")):
            raise ValueError(
                "gateways that count together must know tenants by one secret: set database or "
                "tenant_secret"
            )
        return value
