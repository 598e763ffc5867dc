"""Documents of the same readers or owners (scope.py), in the catalog.

what a view shows    found by the readers that there are in a scope, of which there are few
KV of a chunk        behind others it has seen them, so a chunk stands only behind chunks of
                     documents that its readers may read, and its writers have written
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from threading import Lock
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, or_, select, true

from kvstitch.retriever.catalog import queries
from kvstitch.retriever.catalog.tables import chunks, documents
from kvstitch.retriever.documents import CatalogState
from kvstitch.retriever.scope import Owners, Scope, View
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


def of_owners(each: Owners) -> ColumnElement[bool]:
    """Return a condition on documents: these owners, and no others."""
    return and_(documents.c.readers == each.readers, documents.c.writers == each.writers)


def _trusted_by(owners: Owners) -> ColumnElement[bool]:
    return or_(*map(of_owners, owners.trusted))


def trusted(read: Connection, chunk_ids: Collection[int], owners: Owners) -> set[int]:
    """Return those of these chunks that a document of these owners may stand behind."""
    query = select(chunks.c.chunk_id).join(documents).where(among(chunks.c.chunk_id, chunk_ids))
    return set(read.scalars(query.where(_trusted_by(owners))))


def trusted_in(read: Connection, scope: Scope, owners: Owners) -> list[int] | None:
    """Return the chunks of a collection that a document of these owners may stand behind; None:
    all."""
    of_scope, may = documents.c.scope_id == queries.find_scope(read, scope), _trusted_by(owners)
    if read.scalar(select(documents.c.document).where(of_scope, ~may).limit(1)) is None:
        return None
    return list(read.scalars(select(chunks.c.chunk_id).join(documents).where(of_scope, may)))


class GroupSizes:
    """How many chunks there are. Thread-safe; every call may block.

    Counting a large collection takes long, so its size may be behind: a twentieth of the time goes
    into counting.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted: dict[tuple[Scope, Owners], tuple[int, float]] = {}  # size, valid until when
        self._lock = Lock()

    def own(self, scope: Scope, owners: Owners) -> int:
        """Return the chunks of the documents that have exactly these owners."""
        with self._lock:
            began = time.monotonic()
            size, valid_until = self._counted.get((scope, owners), (0, began))
            if size < _LARGE or began >= valid_until:
                with self._database.read() as read:
                    of_scope = documents.c.scope_id == queries.find_scope(read, scope)
                    query = select(func.count()).select_from(chunks.join(documents))
                    size = int(read.scalar(query.where(of_scope, of_owners(owners))) or 0)
                now = time.monotonic()
                if len(self._counted) >= _REMEMBERED:
                    self._counted.clear()
                self._counted[scope, owners] = size, now + _PAUSE * (now - began)
            return size

    def trusted(self, scope: Scope, owners: Owners) -> int:
        """Return the chunks that a document of these owners may stand behind."""
        return sum(self.own(scope, each) for each in owners.trusted)


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
