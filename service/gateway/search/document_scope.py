"""Which documents a request is about, and the retriever's errors in the service's terms.

A request names a collection of its tenant, and a filter on metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retriever import Filter, Scope, parse_filter
from retriever.errors import (
    CatalogUnreachable,
    EmbedderError,
    InvalidDocument,
    InvalidQuery,
    RetrieverError,
)
from service.errors import DatabaseUnavailable, InternalError, InvalidRequest, KvstitchError


def document_scope(tenant: str, collection: str | None) -> Scope:
    """Return the scope of a tenant's collection; None means the default collection.

    Raises:
        InvalidRequest: No collection can have this name.
    """
    try:
        return Scope(tenant, *([] if collection is None else [collection]))
    except InvalidQuery as error:
        raise service_error(error, field="collection") from error


def metadata_filter(conditions: Mapping[str, Any] | None) -> Filter:
    """Parse a request's `filter`; None passes every document.

    Raises:
        InvalidRequest: A condition is not valid; the error's field is the condition's path.
    """
    try:
        return parse_filter(conditions or {})
    except InvalidQuery as error:
        # The retriever's message begins with the path: "filter.year.near: …".
        raise service_error(error, field=str(error).partition(":")[0]) from error


def service_error(error: RetrieverError, *, field: str | None = None) -> KvstitchError:
    """Return the service's error for one of the retriever.

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
