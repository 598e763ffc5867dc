"""PostgreSQL's errors as the retriever's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from retriever.errors import CatalogError, CatalogUnreachable, InvalidDocument
from retriever.sql.postgresql import PostgresqlError, PostgresqlUnreachable, Refused


@contextmanager
def translated() -> Iterator[None]:
    """Within the block PostgreSQL's errors become CatalogError, and what the document causes
    InvalidDocument."""
    try:
        yield
    except Refused as error:
        raise InvalidDocument(
            f"PostgreSQL cannot store it ({error}): leave NUL characters out"
        ) from error
    except PostgresqlUnreachable as error:
        raise CatalogUnreachable(str(error)) from error
    except PostgresqlError as error:
        raise CatalogError(f"the catalog failed: {error}") from error
