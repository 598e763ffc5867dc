"""Encryption at rest: where the master key is."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator


class EncryptionSettings(BaseModel):
    """The key that wraps the keys of tenants; one of these, or nothing is encrypted."""

    encryption_key_file: Path | None = Field(
        None,
        description="file with the master key, 32 bytes in hex or base64: what is stored is "
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

    @model_validator(mode="after")
    def _vectors_in_the_clear(self) -> Self:
        if self.encrypted and getattr(self, "vectors", "") == "pgvector":
            raise ValueError(
                "vectors = pgvector keeps embeddings where the database can read them: with "
                "encryption use faiss (KVSTITCH_VECTORS)"
            )
        return self

    @property
    def encrypted(self) -> bool:
        """Whether what is stored is encrypted."""
        return bool(self.encryption_key_file or self.encryption_key or self.encryption_kms)
