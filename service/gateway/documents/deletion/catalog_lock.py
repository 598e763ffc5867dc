"""Keeps changes of documents, and what follows from them, apart."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from retriever.sql.database import Database

CHANGING = 0x6B76_0003  # number of the advisory lock


class CatalogLock:
    """The lock on the catalog: held from adding the purges for a change until the change is made.
    Not reentrant.

    In one process it is a lock of asyncio. Where several gateways share a database it is also an
    advisory lock of PostgreSQL, which ends with the session of a gateway that dies.
    """

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self._local = asyncio.Lock()
        self._held: AbstractContextManager[None] | None = None

    async def __aenter__(self) -> None:
        """Wait for the lock; raises DatabaseUnavailable if PostgreSQL does not answer."""
        await self._local.acquire()
        if self._database is None:
            return
        lock = self._database.locked(CHANGING)
        entering = asyncio.create_task(asyncio.to_thread(lock.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread goes on waiting for the lock, and gives it back at once.
            entering.add_done_callback(lambda done: self._give_back(done, lock))
            raise
        except BaseException:
            self._local.release()
            raise
        self._held = lock

    async def __aexit__(self, *_: object) -> None:
        held, self._held = self._held, None
        try:
            if held is not None:
                await asyncio.shield(asyncio.to_thread(held.__exit__, None, None, None))
        finally:
            self._local.release()

    def _give_back(self, done: asyncio.Task[None], lock: AbstractContextManager[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            lock.__exit__(None, None, None)
        self._local.release()
