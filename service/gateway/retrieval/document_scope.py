"""Which documents a request is about: a collection of its sender's tenant."""

from __future__ import annotations

from retriever import Scope
from retriever.errors import InvalidQuery
from service.errors import InvalidRequest
from service.gateway.auth.access import Principal


def scope_of(principal: Principal, collection: str | None) -> Scope:
    """None: the default one. Raises InvalidRequest for a name that can be no collection's."""
    try:
        return Scope(principal.tenant, *([] if collection is None else [collection]))
    except InvalidQuery as error:
        raise InvalidRequest(str(error), field="collection") from error
