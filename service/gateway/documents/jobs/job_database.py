"""What jobs, deletions and events ask of the database that they are in.

It holds documents that were accepted and are not done, pending purges, and receipts: in the file
jobs.sqlite3, or in PostgreSQL, where several gateways share it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from retriever.sql.connection import Connection


class AlreadyAccepted(Exception):
    """A job with the same tenant and idempotency key was accepted meanwhile."""


class JobDatabase(Protocol):
    """Transactions. Thread-safe; every call blocks.

    Attributes:
        gateway_id: of this gateway among those that share the database; "": it is not shared.
    """

    @property
    def gateway_id(self) -> str: ...

    def start(self) -> None:
        """Open it, and migrate it if need be; does nothing if it is open.

        Raises:
            InvalidSetting: It cannot be used, or a later release has written it.
            DiskFull: There is no room.
        """

    def close(self) -> None: ...

    def transaction(self) -> AbstractContextManager[Connection]:
        """Commit the whole block or nothing.

        Raises:
            DiskFull: There is no room.
            DatabaseUnavailable: PostgreSQL does not answer.
            AlreadyAccepted: A rule of uniqueness is broken.
        """

    def insert_job(self, write: Connection, job_id: str, tenant: str, now: float) -> None:
        """Add a job in the state `spooling` that comes after all others."""

    def one_acceptance(self, write: Connection, tenant: str) -> None:
        """Until the transaction ends, no other one that asked for it accepts a job of the tenant,
        and what the others have committed is seen."""

    def scrub(self) -> None:
        """Remove the remains of deleted text from disk, where the database can."""
