"""The chunks that the memory tier holds, for gateways that route by them. The tier knows chunks
by key, gateways by name (`ChunkNames`), messages bring both together; names are remembered only
after a gateway has asked for cached chunks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

# Most names that are remembered, those used last. Chunks beyond are not reported.
MAX_NAMES = 500_000


@dataclass(frozen=True)
class Changes:
    """What changed since the last report."""

    added: list[bytes]
    removed: list[bytes]
    snapshot: bool

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.snapshot)


class CachedChunks:
    """The cached chunks of one worker. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self._names: OrderedDict[str, bytes] = OrderedDict()
        self._reported: dict[str, bytes] = {}  # what gateways believe to be cached
        self._changed: set[str] = set()
        self._on = False
        self._snapshot = False

    @property
    def reported(self) -> bool:
        """Whether a gateway has asked for cached chunks."""
        return self._on

    def report_all(self) -> None:
        """Make the next changes a snapshot."""
        with self._lock:
            self._on = self._snapshot = True

    def changed(self, key: str, cached: bool) -> None:
        """Note that the memory tier holds a chunk from now on, or no longer."""
        with self._lock:
            if cached:
                self._keys.add(key)
            else:
                self._keys.discard(key)
            if self._on:
                self._changed.add(key)

    def name(self, names: Iterable[tuple[str, bytes]]) -> None:
        """Remember the names of chunks, given with their keys."""
        with self._lock:
            for key, name in names:
                if key not in self._names and key in self._keys:
                    self._changed.add(key)
                self._names[key] = name
                self._names.move_to_end(key)
            while len(self._names) > MAX_NAMES:
                self._names.popitem(last=False)

    def changes(self) -> Changes:
        """Return what changed since the last call; it is false if nothing did."""
        with self._lock:
            snapshot, self._snapshot = self._snapshot, False
            if snapshot:
                self._reported.clear()
            looked_at = self._keys if snapshot else self._changed
            added: list[bytes] = []
            removed: list[bytes] = []
            for key in looked_at:
                if key not in self._keys:
                    if (name := self._reported.pop(key, None)) is not None:
                        removed.append(name)
                elif key not in self._reported and (name := self._names.get(key)) is not None:
                    self._reported[key] = name
                    added.append(name)
            self._changed.clear()
            return Changes(added, removed, snapshot)
