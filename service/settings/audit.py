"""The audit log: whether there is one, and what it keeps."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class AuditSettings(BaseModel):
    """Who did what, and for how long that is known."""

    audit: bool = Field(
        False, description="keep an audit log: an entry for every question and every change"
    )
    audit_questions: Literal["hash", "text", "none"] = Field(
        "hash", description="what of a question is in its entry; hash: its SHA-256"
    )
    audit_retention_days: float = Field(
        0.0, ge=0, description="then entries are deleted, and that is one; 0: never"
    )
