"""A scope: one collection of one tenant. No search goes beyond its scope."""

from __future__ import annotations

from dataclasses import dataclass

from retriever.errors import InvalidQuery

MAX_NAME_CHARS = 128


@dataclass(frozen=True, order=True)
class Scope:
    """One collection of one tenant. A document is identified by (tenant, collection, doc_id).

    Attributes:
        tenant: Empty in a service without tenants.
        collection: Not empty.

    Raises:
        InvalidQuery: A name is too long or not valid Unicode, or the collection is empty.
    """

    tenant: str = ""
    collection: str = "default"

    def __post_init__(self) -> None:
        for field, name in (("tenant", self.tenant), ("collection", self.collection)):
            if not isinstance(name, str):
                raise InvalidQuery(f"{field} must be a string, not {type(name).__name__}")
            if len(name) > MAX_NAME_CHARS:
                raise InvalidQuery(f"{field} is longer than {MAX_NAME_CHARS} characters")
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise InvalidQuery(f"{field} holds a lone surrogate: {error}") from error
        if not self.collection.strip():
            raise InvalidQuery("collection must not be empty")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.collection}" if self.tenant else self.collection


DEFAULT_SCOPE = Scope()
