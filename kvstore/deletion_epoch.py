"""Stops a copy that was read before a deletion from being stored again after it."""

import threading
from collections.abc import Callable


class DeletionEpoch:
    """A counter that every deletion raises by one.

    epoch = deletions.current()
    ...                                     # read something that may be deleted meanwhile
    deletions.run_if_unchanged(epoch, keep) # keep a copy only if nothing was deleted since
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def current(self) -> int:
        with self._lock:
            return self._count

    def advance(self) -> None:
        """A deletion starts: nothing that was read earlier will be kept."""
        with self._lock:
            self._count += 1

    def run_if_unchanged(self, epoch: int, keep: Callable[[], None]) -> bool:
        """Call `keep` unless a deletion started after `epoch`; `keep` must not block.

        Returns:
            Whether `keep` was called.
        """
        with self._lock:
            if self._count != epoch:
                return False
            keep()
            return True
