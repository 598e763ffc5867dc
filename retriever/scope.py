"""A scope: one collection of one tenant, as somebody sees it. No search goes beyond its scope."""

from __future__ import annotations

from dataclasses import dataclass, field

from retriever.errors import InvalidQuery
from retriever.readers import EVERYTHING, View

MAX_NAME_CHARS = 128


@dataclass(frozen=True, order=True)
class Scope:
    """One collection of one tenant. A document is identified by (tenant, collection, doc_id).

    What a view does not show is as if it did not exist. Scopes that differ by nothing else are the
    same: indexes are of all. Raises InvalidQuery for names that are not valid.
    """

    tenant: str = ""
    collection: str = "default"
    view: View = field(default=EVERYTHING, compare=False, repr=False)

    def __post_init__(self) -> None:
        for what, name in (("tenant", self.tenant), ("collection", self.collection)):
            if not isinstance(name, str):
                raise InvalidQuery(f"{what} must be a string, not {type(name).__name__}")
            if len(name) > MAX_NAME_CHARS:
                raise InvalidQuery(f"{what} is longer than {MAX_NAME_CHARS} characters")
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise InvalidQuery(f"{what} holds a lone surrogate: {error}") from error
        if not self.collection.strip():
            raise InvalidQuery("collection must not be empty")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.collection}" if self.tenant else self.collection


DEFAULT_SCOPE = Scope()
