"""Encryption at rest: where the master key is."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, ValidationInfo, field_validator


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
