"""What clients send and get, as pydantic models: answers in generate.py, the corpus in admin.py."""

from service.gateway.schemas.admin import (
    DeletedOut,
    DocumentIn,
    DocumentList,
    DocumentOut,
    JobErrorOut,
    JobOut,
    JobProgress,
    PrecomputeRequest,
)
from service.gateway.schemas.fields import MAX_STOP_CHARS, MAX_STOPS, STRICT
from service.gateway.schemas.generate import (
    CacheDocument,
    CacheReport,
    CacheSegment,
    Citation,
    GenerateRequest,
    GenerateResponse,
    MethodChoice,
    PromptTokensDetails,
    Timing,
    Usage,
)

__all__ = [
    "MAX_STOPS",
    "MAX_STOP_CHARS",
    "STRICT",
    "CacheDocument",
    "CacheReport",
    "CacheSegment",
    "Citation",
    "DeletedOut",
    "DocumentIn",
    "DocumentList",
    "DocumentOut",
    "GenerateRequest",
    "GenerateResponse",
    "JobErrorOut",
    "JobOut",
    "JobProgress",
    "MethodChoice",
    "PrecomputeRequest",
    "PromptTokensDetails",
    "Timing",
    "Usage",
]
