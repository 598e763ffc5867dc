"""Reading groups: who may read a document, as far as the KV of other documents depends on it.

A document carries `readers`, a name that this code does not interpret: documents of the same name
are read by the same people; those without one ("") by everybody who may read the collection. The KV
of a chunk that was computed behind other chunks has seen them, so a chunk may only stand behind
chunks whose documents have its own readers, or none.

Who a person is, and what they may read, is the caller's concern.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from threading import Lock

from sqlalchemy import Connection, func, select

from retriever.catalog import queries
from retriever.catalog.tables import chunks, documents
from retriever.scope import Scope
from retriever.sql.database import Database
from retriever.sql.expressions import among

EVERYBODY = ""
_LARGE = 1024  # chunks; smaller ones are counted every time
_PAUSE = 20  # times as long as counting takes, until it is done again
_REMEMBERED = 4096  # sizes


def visible_to(readers: str) -> tuple[str, ...]:
    """Return the readers of the documents that a document of these readers may stand behind."""
    return (EVERYBODY, readers) if readers != EVERYBODY else (EVERYBODY,)


def visible(read: Connection, chunk_ids: Collection[int], readers: str) -> set[int]:
    """Return those of these chunks that a document of these readers may stand behind."""
    query = select(chunks.c.chunk_id).join(documents).where(among(chunks.c.chunk_id, chunk_ids))
    return set(read.scalars(query.where(documents.c.readers.in_(visible_to(readers)))))


def visible_in(read: Connection, scope: Scope, readers: str) -> list[int] | None:
    """Return the chunks of a collection that a document of these readers may stand behind.

    Returns:
        Their ids; None: all of them, as nobody else's are among them.
    """
    of_scope = documents.c.scope_id == queries.find_scope(read, scope)
    others = documents.c.readers > EVERYBODY, documents.c.readers != readers
    if read.scalar(select(documents.c.document).where(of_scope, *others).limit(1)) is None:
        return None
    query = select(chunks.c.chunk_id).join(documents).where(of_scope)
    return list(read.scalars(query.where(documents.c.readers.in_(visible_to(readers)))))


class GroupSizes:
    """How many chunks there are. Thread-safe; every call may block.

    Counting a large collection takes long, so its size may be behind: a twentieth of the time goes
    into counting.

    Args:
        database: The catalog's; it must have been started.
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._counted: dict[tuple[Scope, str], tuple[int, float]] = {}  # size, valid until when
        self._lock = Lock()

    def own(self, scope: Scope, readers: str) -> int:
        """Return the chunks of the documents that have exactly these readers."""
        with self._lock:
            began = self._clock()
            size, valid_until = self._counted.get((scope, readers), (0, began))
            if size < _LARGE or began >= valid_until:
                size = self._count(scope, readers)
                now = self._clock()
                if len(self._counted) >= _REMEMBERED:
                    self._counted.clear()
                self._counted[scope, readers] = size, now + _PAUSE * (now - began)
            return size

    def visible(self, scope: Scope, readers: str) -> int:
        """Return the chunks that a document of these readers may stand behind."""
        return sum(self.own(scope, each) for each in visible_to(readers))

    def _count(self, scope: Scope, readers: str) -> int:
        with self._database.read() as read:
            of_group = (documents.c.scope_id == queries.find_scope(read, scope),
                        documents.c.readers == readers)  # fmt: skip
            query = select(func.count()).select_from(chunks.join(documents)).where(*of_group)
            return int(read.execute(query).scalar_one())
