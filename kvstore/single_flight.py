"""Several threads that want one thing at once share one effort. Knows nothing of chunks."""

import threading
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Calls for one key that overlap in time run once; the others wait for that result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[K, Future[T]] = {}

    def do(self, key: K, work: Callable[[], T]) -> tuple[T, bool]:
        """The result, and whether this caller did the work. An exception goes to all of them."""
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
        """Wait for the work under way for these keys, whatever it gives."""
        with self._lock:
            flights = [self._flights[key] for key in keys if key in self._flights]
        wait(flights)
