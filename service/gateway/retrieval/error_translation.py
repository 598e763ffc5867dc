"""Turns the retriever's errors into the service's: the only place that maps one to the other."""

from __future__ import annotations

from retriever.errors import EmbedderError, InvalidDocument, InvalidQuery, RetrieverError
from service.errors import InternalError, InvalidRequest, KvstitchError


def service_error(error: RetrieverError, *, field: str | None = None) -> KvstitchError:
    """The service's error for one of the retriever.

    Args:
        error: What the retriever raised.
        field: The request's field that caused it, if it is known.

    Returns:
        InvalidRequest for what the client can correct, InternalError for everything else.
    """
    if isinstance(error, InvalidDocument | InvalidQuery):
        return InvalidRequest(str(error), field=field)
    failed = "embedder" if isinstance(error, EmbedderError) else "document index"
    return InternalError(f"the {failed} failed: {error}")
