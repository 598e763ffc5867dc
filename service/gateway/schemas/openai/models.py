"""The list of models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ModelOut(BaseModel):
    """A model as OpenAI lists it; `fusion` is what its preset stands for, `parent` the model that
    it is a LoRA adapter of."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kvstitch"
    parent: str | None = None
    fusion: dict[str, Any] | None = None
    details: dict[str, Any] | None = Field(None, description="of the model itself")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelOut]
