"""Jobs, deletions and events in PostgreSQL, which several gateways share."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from retriever.sql.connection import Connection
from retriever.sql.postgresql import AlreadyThere, Postgresql
from service.gateway import shared_schema
from service.gateway.documents.jobs.job_database import AlreadyAccepted

ACCEPTING = 0x6B76_0005  # first number of the advisory lock, the second is the tenant's


class PostgresqlJobDatabase:
    """Satisfies `JobDatabase`, for one of the gateways.

    Args:
        postgresql: The pool of connections, over `shared_schema.SCHEMA`. Its owner closes it.
        gateway_id: Of this gateway.
    """

    def __init__(self, postgresql: Postgresql, gateway_id: str) -> None:
        self._postgresql = postgresql
        self.gateway_id = gateway_id

    def start(self) -> None:
        """Connect, and bring the tables up to date.

        Raises:
            InvalidSetting: It cannot be reached, or a later release has written it.
        """
        shared_schema.start(self._postgresql)

    def close(self) -> None:
        """The pool belongs to its owner."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commit the whole block or nothing; others' transactions go on meanwhile."""
        try:
            with shared_schema.translated(), self._postgresql.transaction() as connection:
                yield connection
        except AlreadyThere as error:
            raise AlreadyAccepted from error

    def insert_job(self, write: Connection, job_id: str, tenant: str, now: float) -> None:
        write.execute(
            "INSERT INTO jobs (job_id, tenant, state, created, updated, owner) "
            "VALUES (?, ?, 'spooling', ?, ?, ?)",
            (job_id, tenant, now, now, self.gateway_id),
        )

    def one_acceptance(self, write: Connection, tenant: str) -> None:
        # Two tenants of the same number only wait for each other.
        number = zlib.crc32(tenant.encode()) - (1 << 31)
        write.execute(
            "SELECT pg_advisory_xact_lock(CAST(? AS integer), CAST(? AS integer))",
            (ACCEPTING, number),
        )

    def scrub(self) -> None:
        """VACUUM does it, when PostgreSQL decides to."""
