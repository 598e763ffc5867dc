"""Which chunks the memory tier holds, as gateways that route by it are told.

The tier knows chunks by key, gateways by name (`ChunkNames`). Messages bring both together:
whatever is in the memory tier came there for a message that named it. Nothing is remembered before
a gateway asks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

# Names that are remembered, those used last; of a chunk beyond, nobody is told that it is held.
MAX_NAMES = 500_000


@dataclass(frozen=True)
class Changes:
    """What changed since the last time.

    Attributes:
        added: names of chunks; all that are held, if it is a snapshot.
        removed: names of chunks.
        snapshot: whether what was told before is void.
    """

    added: list[bytes]
    removed: list[bytes]
    snapshot: bool

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.snapshot)


class HeldChunks:
    """Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._names: OrderedDict[str, bytes] = OrderedDict()
        self._told: dict[str, bytes] = {}  # what gateways believe to be held
        self._changed: set[str] = set()
        self._asked = False
        self._snapshot = False

    @property
    def asked(self) -> bool:
        """Whether anybody wants to know."""
        return self._asked

    def ask(self) -> None:
        """The next changes are to be a snapshot."""
        with self._lock:
            self._asked = self._snapshot = True

    def changed(self, key: str, held: bool) -> None:
        """The memory tier holds a chunk from now on, or no longer."""
        with self._lock:
            if held:
                self._held.add(key)
            else:
                self._held.discard(key)
            if self._asked:
                self._changed.add(key)

    def name(self, names: Iterable[tuple[str, bytes]]) -> None:
        """These chunks, by key, have these names."""
        with self._lock:
            for key, name in names:
                if key not in self._names and key in self._held:
                    self._changed.add(key)
                self._names[key] = name
                self._names.move_to_end(key)
            while len(self._names) > MAX_NAMES:
                self._names.popitem(last=False)

    def changes(self) -> Changes:
        """What is to be told now; false if nothing is."""
        with self._lock:
            snapshot, self._snapshot = self._snapshot, False
            if snapshot:
                self._told.clear()
            looked_at = self._held if snapshot else self._changed
            added: list[bytes] = []
            removed: list[bytes] = []
            for key in looked_at:
                if key not in self._held:
                    if (name := self._told.pop(key, None)) is not None:
                        removed.append(name)
                elif key not in self._told and (name := self._names.get(key)) is not None:
                    self._told[key] = name
                    added.append(name)
            self._changed.clear()
            return Changes(added, removed, snapshot)
