"""Keeps a deletion from being undone by a copy that was read before it. Knows no tier."""

import threading
from collections.abc import Callable


class DeletionEpoch:
    """A count of deletions.

    since = purges.now()
    ...                              # read something that may be deleted meanwhile
    purges.unless_since(since, ...)  # keep a copy of it only if nothing was
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def now(self) -> int:
        with self._lock:
            return self._count

    def begin(self) -> None:
        """A deletion starts: from here on nothing read earlier is kept."""
        with self._lock:
            self._count += 1

    def unless_since(self, since: int, keep: Callable[[], None]) -> bool:
        """Call ``keep`` (which must not wait) unless a deletion began since; whether it did."""
        with self._lock:
            if self._count != since:
                return False
            keep()
            return True
