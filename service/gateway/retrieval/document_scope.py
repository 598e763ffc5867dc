"""Which documents a request is about: a collection of its tenant, and a filter on metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retriever import Filter, Scope, parse_filter
from retriever.errors import InvalidQuery
from service.gateway.retrieval.error_translation import service_error


def document_scope(tenant: str, collection: str | None) -> Scope:
    """The scope of a tenant's collection; None means the default collection.

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
