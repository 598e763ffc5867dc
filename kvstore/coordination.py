"""How threads that use one store at the same time get on with one another."""

import threading
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Runs overlapping calls for one key once; the other callers wait for that result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[K, Future[T]] = {}

    def do(self, key: K, work: Callable[[], T]) -> tuple[T, bool]:
        """Do the work for `key`, or wait for a caller that is doing it already."""
        with self._lock:
            flight = self._flights.get(key)
            leading = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not leading:
            return flight.result(), False
        try:
            flight.set_result(work())
        except BaseException as error:
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._flights[key]
        return flight.result(), True

    def join(self, keys: Collection[K]) -> None:
        """Wait until no work is under way for these keys; its result is ignored."""
        with self._lock:
            flights = [self._flights[key] for key in keys if key in self._flights]
        wait(flights)


class DeletionEpoch:
    """Stops a copy that was read before a deletion from being stored again after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def current(self) -> int:
        with self._lock:
            return self._count

    def advance(self) -> None:
        """Mark the start of a deletion: nothing that was read earlier will be kept."""
        with self._lock:
            self._count += 1

    def run_if_unchanged(self, epoch: int, keep: Callable[[], None]) -> bool:
        """Call `keep` unless a deletion started after `epoch`; `keep` must not block."""
        with self._lock:
            if self._count != epoch:
                return False
            keep()
            return True
