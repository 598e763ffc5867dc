"""Error responses, for OpenAPI; `service.gateway.problems` writes them."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorObject(BaseModel):
    """`param` names the field that is wrong, `code` is stable and machine-readable."""

    message: str
    type: str
    code: str
    param: str | None


class ErrorOut(BaseModel):
    """Of every route under /v1, as OpenAI's clients expect it."""

    error: ErrorObject


class Problem(BaseModel):
    """Of all other routes: application/problem+json (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    field: str | None = None
