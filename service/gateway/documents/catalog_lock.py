"""The lock on the catalog: held from adding the purges for a change until the change is made.

In one process it is a lock of asyncio. Where several gateways share a database it is also an
advisory lock of PostgreSQL, which ends with the session of a gateway that dies.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from types import TracebackType

from retriever.sql.postgresql import Postgresql
from service.gateway.shared_schema import translated

CHANGING = 0x6B76_0003  # number of the advisory lock


class CatalogLock:
    """Used with `async with`; not reentrant.

    Args:
        postgresql: The database that is shared; None: it is not.
    """

    def __init__(self, postgresql: Postgresql | None = None) -> None:
        self._postgresql = postgresql
        self._local = asyncio.Lock()
        self._held: AbstractContextManager[None] | None = None

    async def __aenter__(self) -> None:
        """Wait for the lock.

        Raises:
            DatabaseUnavailable: PostgreSQL does not answer.
        """
        await self._local.acquire()
        if self._postgresql is None:
            return
        lock = self._postgresql.locked(CHANGING)
        entering = asyncio.create_task(asyncio.to_thread(_enter, lock))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread goes on waiting: whoever it gets the lock for is gone.
            entering.add_done_callback(lambda done: self._give_back(done, lock))
            raise
        except BaseException:
            self._local.release()
            raise
        self._held = lock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held, self._held = self._held, None
        try:
            if held is not None:
                await asyncio.shield(asyncio.to_thread(_leave, held))
        finally:
            self._local.release()

    def _give_back(self, done: asyncio.Task[None], lock: AbstractContextManager[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            _leave(lock)
        self._local.release()


def _enter(lock: AbstractContextManager[None]) -> None:
    with translated():
        lock.__enter__()


def _leave(lock: AbstractContextManager[None]) -> None:
    with translated():
        lock.__exit__(None, None, None)
