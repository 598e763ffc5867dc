"""What clients of a fleet know: documents by what was acknowledged, and every request's end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Drawer:
    """A document that comes, and may go; its text has a word that no other has."""

    number: int

    @property
    def doc_id(self) -> str:
        return f"drawer-{self.number}"

    @property
    def word(self) -> str:
        return f"marker{self.number}q"

    @property
    def body(self) -> dict[str, Any]:
        text = f"Drawer {self.number} is called {self.word} and holds {self.number * 7 + 3} keys."
        return {"doc_id": self.doc_id, "title": f"Drawer {self.number}", "text": text}


@dataclass(frozen=True)
class End:
    """How one request ended.

    Attributes:
        what: answer, ingest or deletion.
        outcome: `good`, or a name of what came instead.
        began, ended: time.monotonic().
    """

    what: str
    outcome: str
    gateway: str
    began: float
    ended: float


@dataclass
class Ledger:
    """Several threads write.

    Attributes:
        there: acknowledged, and no deletion was sent.
        gone: their deletion was acknowledged.
        receipts: of these.
    """

    there: set[Drawer] = field(default_factory=set)
    gone: set[Drawer] = field(default_factory=set)
    receipts: list[str] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fresh(self, count: int) -> list[Drawer]:
        """Documents that were never sent."""
        with self._lock:
            self._next += count
            return [Drawer(n) for n in range(self._next - count, self._next)]

    def acknowledged(self, documents: Sequence[Drawer]) -> None:
        with self._lock:
            self.there.update(documents)

    def to_delete(self, document: Drawer) -> None:
        """From now on it may be there or not."""
        with self._lock:
            self.there.discard(document)

    def deleted(self, document: Drawer, receipt: str | None) -> None:
        """A deletion is acknowledged; without a receipt if an earlier attempt had done it."""
        with self._lock:
            self.gone.add(document)
            if receipt is not None:
                self.receipts.append(receipt)

    def ended(self, what: str, outcome: str, gateway: str, began: float) -> None:
        with self._lock:
            self.ends.append(End(what, outcome, gateway, began, time.monotonic()))

    def violation(self, what: str) -> None:
        with self._lock:
            self.violations.append(what)

    def first_good_s(self, what: str, since: float, gateway: str | None = None) -> float | None:
        """Seconds from `since` to the end of the first good request that began after it."""
        with self._lock:
            found = [
                end.ended - since
                for end in self.ends
                if (end.what, end.outcome) == (what, "good") and end.began >= since
                and gateway in (None, end.gateway)
            ]  # fmt: skip
        return min(found, default=None)

    def outcomes(self, since: float = 0.0, to: float = float("inf")) -> dict[str, int]:
        """How many requests ended in which way."""
        with self._lock:
            counts = Counter(
                f"{end.what}: {end.outcome}" for end in self.ends if since <= end.ended < to
            )
        return dict(sorted(counts.items()))
