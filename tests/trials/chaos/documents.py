"""The documents of a run, and the ledger of what the service has acknowledged about each."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from demo.corpus_files import read_documents

State = Literal["present", "absent", "maybe"]
TENANTS = ("red", "blue")
OPERATOR = ""  # the unnamed tenant, whose keys see what is of all
OF_ALL = ("/metrics", "/admin/gate", "/admin/gate/reset")


@dataclass(frozen=True)
class Document:
    """What is handed in; its text never changes, so that its chunk's key does not either."""

    tenant: str
    doc_id: str
    title: str
    text: str

    @property
    def body(self) -> dict[str, Any]:
        return {"doc_id": self.doc_id, "title": self.title, "text": self.text}

    @property
    def needle(self) -> bytes:
        """Words that no other document has."""
        return self.text[:48].encode()


def universe(asked: int, others: int) -> list[Document]:
    """All documents there ever are: those that questions are asked about, and those that come and
    go. Blue has a quarter of each."""
    corpus = read_documents()
    pool = [corpus[i * len(corpus) // asked] for i in range(asked)]
    documents = [Document("red", d.doc_id, d.title, d.text) for d in pool]
    for tenant, count in (("red", others), ("blue", max(2, (asked + others) // 4))):
        for i in range(count):
            text = f"Marker {tenant}x{i:03d}q: drawer {i} of {tenant} holds {i * 7 + 3} keys."
            documents.append(Document(tenant, f"{tenant}-{i}", f"Drawer {i}", text))
    return documents


class Ledger:
    """What must be, must not be, and may be in the catalog. Writers reserve documents."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = {(d.tenant, d.doc_id): d for d in documents}
        self._states: dict[Document, State] = {d: "absent" for d in self._documents.values()}
        self._busy: set[Document] = set()
        self._away: dict[Document, float] = {}  # when it was last known to be anything but there
        self._lock = threading.Lock()

    def state(self, document: Document) -> State:
        return self._states[document]

    def of(self, tenant: str, *states: State) -> list[Document]:
        with self._lock:
            return [d for d, s in self._states.items() if d.tenant == tenant and s in states]

    def find(self, tenant: str, doc_id: str) -> Document | None:
        return self._documents.get((tenant, doc_id))

    def all(self) -> Iterator[Document]:
        return iter(self._documents.values())

    @contextmanager
    def reserved(
        self, chance: random.Random, tenant: str, states: Iterable[State], count: int
    ) -> Iterator[list[Document]]:
        """Documents that nobody else changes meanwhile, at most so many."""
        wanted = self.of(tenant, *states)
        chance.shuffle(wanted)
        with self._lock:
            taken = [d for d in wanted if d not in self._busy][:count]
            self._busy.update(taken)
        try:
            yield taken
        finally:
            with self._lock:
                self._busy.difference_update(taken)

    def note(self, documents: Iterable[Document], state: State) -> None:
        with self._lock:
            for document in documents:
                if state != "present" or self._states[document] != "present":
                    self._away[document] = time.monotonic()
                self._states[document] = state

    def stayed(self, document: Document, seconds: float) -> bool:
        """Whether it has been there all this time, as far as the service has said."""
        with self._lock:
            there = self._states[document] == "present"
            return there and time.monotonic() - self._away[document] > seconds

    def forget_all(self) -> None:
        """After a stop of the run nothing is known: the catalog will tell."""
        self.note(list(self.all()), "maybe")

    def adopt(self, tenant: str, listed: set[str]) -> None:
        """In calm the catalog says what became of every open case."""
        for document in self.of(tenant, "maybe"):
            self.note([document], "present" if document.doc_id in listed else "absent")
