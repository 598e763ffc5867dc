"""Readers of documents that change while others search, and who could read what in the meantime."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from kvstitch.retriever import Document, Retriever
from kvstitch.retriever.scope import joined_readers

Groups = tuple[str, ...]
SEARCHES = 10  # to every change, however fast the machine is


class ReaderHistory:
    """Which readers each document had, and when. Safe between threads."""

    def __init__(self, readers: Sequence[Groups]) -> None:
        # Per document: readers, from when they may have held, until when.
        self._spans: list[list[tuple[Groups, float, float]]] = [
            [(each, 0.0, float("inf"))] for each in readers
        ]
        self._lock = threading.Lock()

    def begin(self, number: int, readers: Groups) -> None:
        """A change of this document begins: from now on it may have its old or its new readers."""
        with self._lock:
            self._spans[number].append((readers, time.monotonic(), float("inf")))

    def ended(self, number: int) -> None:
        """The change has been made: the readers before it hold no more."""
        with self._lock:
            old, since, _ = self._spans[number][-2]
            self._spans[number][-2] = (old, since, time.monotonic())

    def could_read(self, member: frozenset[str], number: int, began: float) -> set[bool]:
        """Return whether these groups may have read a document between `began` and now; two
        answers where its readers were changed meanwhile."""
        with self._lock:
            held = [groups for groups, _, until in self._spans[number] if until >= began]
        return {not groups or not member.isdisjoint(groups) for groups in held}


class ReaderChanges:
    """A thread that gives one document after the other new readers, while others search.

    Attributes:
        made: How many changes were made.
    """

    def __init__(
        self,
        retriever: Retriever,
        texts: Sequence[str],
        groups: Sequence[str],
        history: ReaderHistory,
        seed: int,
    ) -> None:
        self._retriever, self._texts, self._groups = retriever, texts, groups
        self._history = history
        self._rng = random.Random(seed)
        self._due = threading.Semaphore(0)
        self._searches = 0
        self._stopped = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="changes of readers")
        self.made = 0

    def __enter__(self) -> ReaderChanges:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped = True
        self._due.release()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def search_begins(self) -> None:
        """Count a search: every tenth lets a change begin, for which it does not wait."""
        self._searches += 1
        if self._searches % SEARCHES == 0:
            self._due.release()

    def _run(self) -> None:
        try:
            while self._due.acquire() and not self._stopped:
                self._change_one()
        except Exception as failure:
            self._failure = failure

    def _change_one(self) -> None:
        number = self._rng.randrange(len(self._texts))
        some = 0 if self._rng.random() < 0.2 else self._rng.randint(1, 4)
        readers = tuple(self._rng.sample(self._groups, some))
        self._history.begin(number, readers)
        document = Document(f"d{number}", self._texts[number], readers=joined_readers(readers))
        self._retriever.ingest([document])
        self._history.ended(number)
        self.made += 1
