"""Which chunks of a scope a view shows, remembered as long as the catalog stays as it is."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from retriever.catalog.catalog_records import CatalogState
from retriever.readers import View

REMEMBERED = 2_000_000  # ids, of all views together


@dataclass(frozen=True)
class Shown:
    """What a view shows."""

    state: CatalogState
    chunk_ids: list[int] | None

    @property
    def size(self) -> int:
        """What it counts; nothing costs nothing."""
        return 1 + len(self.chunk_ids or ())


class ShownChunks:
    """Thread-safe. Forgets what was not asked for the longest."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._size = 0
        self._found: OrderedDict[tuple[int | None, View], Shown] = OrderedDict()
        self._lock = Lock()

    def find(self, scope_id: int | None, view: View, state: CatalogState) -> Shown | None:
        """Return what a view shows in this state; None: it is not known."""
        with self._lock:
            found = self._found.get((scope_id, view))
            if found is None or found.state != state:
                return None
            self._found.move_to_end((scope_id, view))
            return found

    def remember(self, scope_id: int | None, view: View, shown: Shown) -> None:
        """Take note of what a view shows."""
        with self._lock:
            before = self._found.pop((scope_id, view), None)
            self._size += shown.size - (0 if before is None else before.size)
            self._found[scope_id, view] = shown
            while self._size > self._most:
                _, dropped = self._found.popitem(last=False)
                self._size -= dropped.size
