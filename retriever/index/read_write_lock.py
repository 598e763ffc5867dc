"""A lock for many readers or one writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """Readers share the lock, a writer has it alone. A waiting writer goes before new readers.

    It is not reentrant: a thread that holds it must not ask for it again.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._waiting_writers = 0
        self._writing = False

    @contextmanager
    def read(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._writing and not self._waiting_writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        with self._condition:
            self._waiting_writers += 1
            try:
                self._condition.wait_for(lambda: not self._writing and not self._readers)
                self._writing = True
            finally:
                self._waiting_writers -= 1
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
