"""Vectors in PostgreSQL, found by pgvector: no gateway holds them in memory."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from kvstitch.service.plugins import hookimpl


class VectorSettings(BaseModel):
    """Where vectors are."""

    vectors: Literal["faiss", "pgvector"] = Field(
        "faiss",
        validate_default=True,
        description="where vectors are searched: in each gateway's memory, or in the database",
    )

    @field_validator("vectors")
    @classmethod
    def _in_a_database(cls, value: str, info: ValidationInfo) -> str:
        if value == "pgvector" and not info.data.get("database"):
            raise ValueError("pgvector needs a database (KVSTITCH_DATABASE)")
        return value


@hookimpl
def settings() -> type[BaseModel]:
    return VectorSettings


@hookimpl
def vector_index(settings: Any, database: Any) -> Any:
    if settings.vectors != "pgvector":
        return None
    from kvstitch_pgvector.pgvector_index import PgvectorIndex

    return PgvectorIndex(database)
