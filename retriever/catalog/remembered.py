"""What was found out about a catalog, remembered as long as the catalog stays as it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from retriever.catalog.catalog_records import CatalogState

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
