"""Requests and responses as pydantic models.

The docstrings of models, and the descriptions of fields, are part of /openapi.json.
"""

from service.gateway.schemas.admin import (
    CollectionList,
    CollectionOut,
    DeletionRequest,
    DocumentIn,
    DocumentList,
    DocumentOut,
    JobErrorOut,
    JobList,
    JobOut,
    JobProgress,
    JobState,
    MarkOut,
    PrecomputeRequest,
    ReceiptOut,
)
from service.gateway.schemas.citations import Attribution, Citation, RetrievalNote
from service.gateway.schemas.fields import MAX_STOP_CHARS, MAX_STOPS, MAX_UNKNOWN_FIELDS, STRICT
from service.gateway.schemas.generate import (
    CacheDocument,
    CacheReport,
    CacheSegment,
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
    "MAX_UNKNOWN_FIELDS",
    "STRICT",
    "Attribution",
    "CacheDocument",
    "CacheReport",
    "CacheSegment",
    "Citation",
    "CollectionList",
    "CollectionOut",
    "DeletionRequest",
    "DocumentIn",
    "DocumentList",
    "DocumentOut",
    "GenerateRequest",
    "GenerateResponse",
    "JobErrorOut",
    "JobList",
    "JobOut",
    "JobProgress",
    "JobState",
    "MarkOut",
    "MethodChoice",
    "PrecomputeRequest",
    "PromptTokensDetails",
    "ReceiptOut",
    "RetrievalNote",
    "Timing",
    "Usage",
]
