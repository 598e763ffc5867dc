"""The tiers that KV is kept in."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from service.settings.addresses import REDIS_SCHEMES


class TierSettings(BaseModel):
    """The tiers that KV is kept in."""

    codec: Literal["int2", "int4", "int8", "raw"] = Field("raw", description="how KV is stored")
    memory_tier_mib: int = Field(2048, ge=0, description="memory tier; 0: none")
    ssd_tier_gib: float = Field(32.0, ge=0, description="SSD tier below data_dir; 0: none")
    redis_url: str = Field(
        "",
        description="shared tier, redis://host:port/db, or redis+cluster://host:port,host:port of "
        "a Redis Cluster; empty: none",
    )
    redis_ttl_s: int = Field(0, ge=0, description="0: until Redis evicts")
    s3_url: str = Field("", description="cold tier, s3://bucket/prefix; empty: none")
    s3_endpoint: str = Field("", description="URL of the S3 server; empty: AWS")
    s3_region: str = Field("", description="empty: AWS_REGION, or us-east-1")
    write_tiers: str = Field(
        "",
        description="tiers besides memory that get computed KV, e.g. ssd,s3; the others get copies "
        "of what is read from slower ones; empty: all",
    )
    stored_prompts_gib: float = Field(
        4.0,
        ge=0,
        description="kept prompts on disk beside the SSD tier, so that conversations and repeated "
        "prompts are continued after a restart, or when the KV pool has given them up; 0: none",
    )

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, value: str) -> str:
        if value and not value.startswith(REDIS_SCHEMES):
            raise ValueError(f"must start with {', '.join(REDIS_SCHEMES)}")
        return value

    @field_validator("s3_url")
    @classmethod
    def _s3_scheme(cls, value: str) -> str:
        scheme, _, bucket = value.partition("://")
        if value and (scheme != "s3" or not bucket.partition("/")[0]):
            raise ValueError("must be s3://bucket or s3://bucket/prefix")
        return value

    @field_validator("write_tiers")
    @classmethod
    def _tiers_that_are_set(cls, value: str, info: ValidationInfo) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        given = info.data
        there = {
            "ssd": given.get("ssd_tier_gib"),
            "redis": given.get("redis_url"),
            "s3": given.get("s3_url"),
        }
        for name in names:
            if not there.get(name):
                known = ", ".join(tier for tier, is_set in there.items() if is_set)
                raise ValueError(f"there is no tier {name!r}; besides memory: {known or 'none'}")
        return ",".join(names)
