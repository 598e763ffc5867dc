"""Reading groups: documents of the same readers (scope.py), in the catalog.

what a view shows    found by the readers that there are in a scope, of which there are few
KV of a chunk        behind others it has seen them, so a chunk stands only behind chunks of
                     documents with its own readers, or everybody's
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from threading import Lock
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, true

from kvstitch.retriever.catalog import queries
from kvstitch.retriever.catalog.tables import chunks, documents
from kvstitch.retriever.documents import CatalogState
from kvstitch.retriever.scope import EVERYBODY, Scope, View
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.expressions import Prepared, among

_LARGE = 1024  # chunks; smaller ones are counted every time
_PAUSE = 20  # times as long as counting takes, until it is done again
_REMEMBERED = 4096  # sizes


def _select_readers() -> Prepared:
    """Select the readers of a scope's documents, one step in the index for each."""
    of_scope = documents.c.scope_id == bindparam("scope_id")
    least = select(func.min(documents.c.readers).label("readers"))
    found = least.where(of_scope).cte("found", recursive=True)
    after = least.where(of_scope, documents.c.readers > found.c.readers)
    found = found.union_all(
        select(after.scalar_subquery().label("readers")).where(found.c.readers.is_not(None))
    )
    return Prepared(select(found.c.readers).where(found.c.readers.is_not(None)))


_THERE = _select_readers()


def readable(read: Connection, scope_id: int | None, view: View) -> list[str] | None:
    """Return the readers of those of a scope's documents that a view shows."""
    if view.groups is None:
        return None
    there = [readers for (readers,) in _THERE.rows(read, scope_id=scope_id)]
    shown = [readers for readers in there if view.shows(readers)]
    return None if len(shown) == len(there) else shown


def of_readers(readers: Collection[str] | None) -> ColumnElement[bool]:
    """Return a condition on documents; None: any."""
    return true() if readers is None else among(documents.c.readers, readers)


def visible_to(readers: str) -> tuple[str, ...]:
    """Return the readers of the documents that a document of these readers may stand behind."""
    return (EVERYBODY, readers) if readers != EVERYBODY else (EVERYBODY,)


def visible(read: Connection, chunk_ids: Collection[int], readers: str) -> set[int]:
    """Return those of these chunks that a document of these readers may stand behind."""
    query = select(chunks.c.chunk_id).join(documents).where(among(chunks.c.chunk_id, chunk_ids))
    return set(read.scalars(query.where(documents.c.readers.in_(visible_to(readers)))))


def visible_in(read: Connection, scope: Scope, readers: str) -> list[int] | None:
    """Return the chunks of a collection that a document of these readers may stand behind; None:
    all."""
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


SHOWN = 2_000_000  # ids of chunks, of all views together
SCOPES = 32  # whose words are counted
WORDS = 8192  # of a scope

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Thread-safe. Forgets what was not asked for the longest when all sizes together exceed
    `most`."""

    def __init__(self, most: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self._most = most
        self._size_of = size
        self._size = 0
        self._found: OrderedDict[K, tuple[CatalogState, V]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: K, state: CatalogState) -> tuple[V] | None:
        """Return the value alone in a tuple; None: it is not known of this state."""
        with self._lock:
            found = self._found.get(key)
            if found is None or found[0] != state:
                return None
            self._found.move_to_end(key)
            return (found[1],)

    def remember(self, key: K, state: CatalogState, value: V) -> None:
        with self._lock:
            if (before := self._found.pop(key, None)) is not None:
                self._size -= self._size_of(before[1])
            self._found[key] = state, value
            self._size += self._size_of(value)
            while self._size > self._most:
                _, (_, dropped) = self._found.popitem(last=False)
                self._size -= self._size_of(dropped)
