"""Turns the retriever's errors into the service's: the only place that maps one to the other."""

from __future__ import annotations

from retriever.errors import (
    CatalogUnreachable,
    EmbedderError,
    InvalidDocument,
    InvalidQuery,
    RetrieverError,
)
from service.errors import DatabaseUnavailable, InternalError, InvalidRequest, KvstitchError


def service_error(error: RetrieverError, *, field: str | None = None) -> KvstitchError:
    """The service's error for one of the retriever.

    Args:
        error: What the retriever raised.
        field: The request's field that caused it, if it is known.

    Returns:
        InvalidRequest for what the client can correct, DatabaseUnavailable while PostgreSQL does
        not answer, InternalError for everything else.
    """
    if isinstance(error, InvalidDocument | InvalidQuery):
        return InvalidRequest(str(error), field=field)
    if isinstance(error, CatalogUnreachable):
        return DatabaseUnavailable(str(error), retry_after_s=2.0)
    failed = "embedder" if isinstance(error, EmbedderError) else "document index"
    return InternalError(f"the {failed} failed: {error}")
