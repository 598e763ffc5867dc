"""Where documents, jobs, keys and KV are kept, and what encrypts them."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from kvstitch.service import plugins
from kvstitch.service.settings.fields import (
    ADDRESS,
    HttpUrl,
    PostgresUrl,
    RedisUrl,
    default_data_dir,
    parts,
)


class PlaceSettings(BaseModel):
    """Where documents, jobs and keys are kept, and where traces go."""

    database: PostgresUrl = Field(
        "",
        description="PostgreSQL for documents, jobs and keys, which several gateways share, "
        "postgresql://user:password@host/name; empty: files in data_dir",
        repr=False,
        json_schema_extra=ADDRESS,
    )
    data_dir: Path = Field(default_factory=default_data_dir, description="documents, jobs, KV")
    pin_check_s: float = Field(60.0, gt=0, description="pause between looks at pinned KV")
    job_retention_days: float = Field(
        30.0, ge=0, description="then ended jobs and their idempotency keys are forgotten; 0: never"
    )
    otlp_endpoint: HttpUrl = Field(
        "",
        description="OpenTelemetry collector, http://host:4318; empty: nothing is traced",
        repr=False,
        json_schema_extra=ADDRESS,
    )


class TierSettings(BaseModel):
    """The tiers that KV is kept in."""

    codec: Literal["int2", "int4", "int8", "k8v4", "k8v8", "raw"] = Field(
        "k8v8",
        description="how KV is stored: `raw`, or keys and values in fewer bits",
    )
    memory_tier_mib: int = Field(2048, ge=0, description="memory tier; 0: none")
    ssd_tier_gib: float = Field(32.0, ge=0, description="SSD tier below data_dir; 0: none")
    redis_url: RedisUrl = Field(
        "",
        description="shared tier, redis://host:port/db, or redis+cluster://host:port,host:port of "
        "a Redis Cluster; empty: none",
        repr=False,
        json_schema_extra=ADDRESS,
    )
    redis_ttl_s: int = Field(0, ge=0, description="0: until Redis evicts")
    write_tiers: str = Field(
        "",
        description="tiers besides memory that get computed KV, e.g. ssd,s3; the others get copies "
        "of what is read from slower ones; empty: all",
    )
    kv_ttl: str = Field(
        "",
        description="COLLECTION=DAYS by commas, *: all others: stored KV of documents is deleted "
        "when it is older, and computed again at need; empty: never",
    )

    @property
    def kv_ttls(self) -> dict[str, float]:
        """Days that KV is kept, by collection; `*`: all others."""
        pairs = (part.rpartition("=") for part in parts(self.kv_ttl))
        return {name.strip(): float(days) for name, _, days in pairs}

    @field_validator("kv_ttl")
    @classmethod
    def _days_by_collection(cls, value: str) -> str:
        for part in parts(value):
            name, _, days = part.rpartition("=")
            try:
                right = bool(name.strip()) and 0 < float(days) < float("inf")
            except ValueError:
                right = False
            if not right:
                raise ValueError(f"must be COLLECTION=DAYS by commas, not {part!r}")
        return value

    @field_validator("write_tiers")
    @classmethod
    def _tiers_that_are_set(cls, value: str, info: ValidationInfo) -> str:
        settings = {"ssd": "ssd_tier_gib", "redis": "redis_url"}
        there = [tier for tier, setting in settings.items() if info.data.get(setting)]
        for name in parts(value):
            if name not in there and name not in plugins.tiers():
                known = ", ".join(there) or "none"
                raise ValueError(f"there is no tier {name!r}; besides memory: {known}")
        return ",".join(parts(value))


class EncryptionSettings(BaseModel):
    """The key that wraps the keys of tenants; one of these, or KV is in the clear."""

    encryption_key_file: Path | None = Field(
        None,
        description="file with the master key, 32 bytes in hex or base64: stored KV is "
        "encrypted under keys of the tenants, which it wraps; empty: in the clear",
    )
    encryption_key: str = Field(
        "", repr=False, description="the master key itself, instead of a file"
    )
    encryption_kms: str = Field(
        "",
        description="what wraps the tenants' keys instead of a master key: a command, called "
        "with wrap or unwrap, or python:module:object",
    )

    @field_validator("encryption_key", "encryption_kms")
    @classmethod
    def _only_one(cls, value: str, info: ValidationInfo) -> str:
        others = ("encryption_key_file", "encryption_key")
        if value and any(info.data.get(name) for name in others):
            raise ValueError(
                "one of encryption_key_file, encryption_key and encryption_kms holds the key"
            )
        return value

    @property
    def encrypted(self) -> bool:
        """Whether stored KV is encrypted."""
        return bool(self.encryption_key_file or self.encryption_key or self.encryption_kms)
