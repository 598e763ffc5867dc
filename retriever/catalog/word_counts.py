"""In how many chunks words are, remembered as long as the catalog stays as it is.

A question's words are looked up in the stems of every language, and nearly all of them are nowhere:
a hundred look-ups for ten words, most of which the questions before have made.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from retriever.catalog.catalog_records import CatalogState

SCOPES = 32
WORDS = 8192  # of a scope


class WordCounts:
    """Thread-safe. Forgets the scope that was not searched for the longest."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[CatalogState, dict[str, int]]] = OrderedDict()
        self._lock = Lock()

    def of(self, scope_id: int, state: CatalogState) -> dict[str, int]:
        """Return what is known of a scope in this state; whoever looks up more adds it."""
        with self._lock:
            found = self._known.get(scope_id)
            if found is None or found[0] != state or len(found[1]) > WORDS:
                found = self._known[scope_id] = state, {}
            self._known.move_to_end(scope_id)
            if len(self._known) > SCOPES:
                self._known.popitem(last=False)
            return found[1]
