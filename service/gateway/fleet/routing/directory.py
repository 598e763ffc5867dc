"""What each worker has, as far as the gateway knows: chunks in memory, and earlier prompts.

It is soft state. Workers send numbered changes; after a gap nothing of that worker counts until a
snapshot has come. A directory that is wrong costs time: the chosen worker then finds a chunk in a
slower tier, or computes it, as always. Chunks go by their names (`ChunkNames`).
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from kvstitch.service.messages.replies import Holdings
from kvstitch.service.messages.requests import Generate

# Names that are remembered to be in a slower tier; those seen first are forgotten first.
MAX_STORED = 1_000_000
MAX_EXPECTED = 10_000
# Seconds for which a worker is expected to get a chunk that a request was sent to it with.
EXPECTED_S = 10.0


class Directory:
    """Which chunks workers hold in memory, by their numbers. For one event loop. `on_gap` is called
    when changes of a worker are missing."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_gap: Callable[[], None] = lambda: None
    ) -> None:
        self._clock = clock
        self._on_gap = on_gap
        self._holders: dict[bytes, tuple[int, ...]] = {}  # most have one: a set is four times it
        self._held: dict[int, set[bytes]] = {}
        self._next: dict[int, int] = {}  # number of the next change of each worker that reports
        self._stored: OrderedDict[bytes, None] = OrderedDict()
        self._expected: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def apply(self, worker: int, holdings: Holdings) -> bool:
        """Apply what a worker reports; False if changes are missing: it must be asked for a
        snapshot."""
        if holdings.snapshot:
            self.forget(worker)
        elif (expected := self._next.get(worker)) != holdings.number:
            if expected is not None:  # else it has only just come
                self._on_gap()
            self.forget(worker)
            return False
        self._next[worker] = holdings.number + 1
        for name in holdings.removed:
            self._drop(name, worker)
        for name in holdings.added:
            self._add(name, worker)
            self._expected.pop(name, None)
        self.note_stored(holdings.added)
        return True

    def forget(self, worker: int) -> None:
        """Forget everything that a worker has reported."""
        self._next.pop(worker, None)
        for name in self._held.pop(worker, ()):
            self._drop(name, worker)
        for name in [n for n, (expected, _) in self._expected.items() if expected == worker]:
            del self._expected[name]

    def note_stored(self, names: Iterable[bytes]) -> None:
        """Note that some worker has these chunks, and so has written them to every tier."""
        for name in names:
            self._stored[name] = None
        while len(self._stored) > MAX_STORED:
            self._stored.popitem(last=False)

    def expect(self, worker: int, names: Iterable[bytes]) -> None:
        """Note that a worker is about to get those of these chunks that no worker holds."""
        until = self._clock() + EXPECTED_S
        for name in names:
            if name not in self._holders:
                self._expected[name] = worker, until
                self._expected.move_to_end(name)
        while len(self._expected) > MAX_EXPECTED:
            self._expected.popitem(last=False)

    def deleted(self, names: Iterable[bytes]) -> None:
        """Forget chunks that are in no tier any more."""
        for name in names:
            for worker in self._holders.pop(name, ()):
                self._held[worker].discard(name)
            self._stored.pop(name, None)
            self._expected.pop(name, None)

    def holders(self, name: bytes) -> frozenset[int]:
        """Workers whose memory tier holds a chunk."""
        return frozenset(self._holders.get(name, ()))

    def holds(self, worker: int, name: bytes) -> bool:
        """Return whether a worker's memory tier holds a chunk."""
        return worker in self._holders.get(name, ())

    def expected_at(self, name: bytes) -> int | None:
        """Return the worker that is about to get a chunk."""
        worker, until = self._expected.get(name, (None, 0.0))
        return worker if until > self._clock() else None

    def is_stored(self, name: bytes) -> bool:
        """Return whether slower tiers were seen to get a chunk; they may have evicted it since."""
        return name in self._stored

    def held(self, worker: int) -> int:
        """Return how many chunks a worker's memory tier holds."""
        return len(self._held.get(worker, ()))

    def _add(self, name: bytes, worker: int) -> None:
        holders = self._holders.get(name, ())
        if worker not in holders:
            self._holders[name] = (*holders, worker)
            self._held.setdefault(worker, set()).add(name)

    def _drop(self, name: bytes, worker: int) -> None:
        left = tuple(holder for holder in self._holders.get(name, ()) if holder != worker)
        if left:
            self._holders[name] = left
        else:
            self._holders.pop(name, None)
        if (held := self._held.get(worker)) is not None:
            held.discard(name)


BLOCK_TOKENS = 64
MAX_BLOCKS = 50_000


def prompt_beginnings(request: Generate) -> list[bytes]:
    """Return a name for every beginning of the prompt that is a multiple of 64 tokens long."""
    tokens: list[int] = [*request.system]
    for document in request.documents:
        tokens += document.ids
    tokens += request.question
    name = blake2b(repr((request.tenant, request.lora)).encode(), digest_size=16)
    names: list[bytes] = []
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        name.update(array("q", tokens[end - BLOCK_TOKENS : end]).tobytes())
        names.append(name.digest())
    return names


class PrefixMap:
    """Beginnings of prompts, and the worker that each was sent to last.

    Workers keep answered prompts while they have room, and do not report them; so this remembers
    what was sent where, in blocks of 64 tokens, as routers by prefix do.
    """

    def __init__(self) -> None:
        self._workers: OrderedDict[bytes, int] = OrderedDict()

    def note(self, blocks: Sequence[bytes], worker: int) -> None:
        """Note that a prompt is sent to a worker."""
        for block in blocks:
            self._workers[block] = worker
            self._workers.move_to_end(block)
        while len(self._workers) > MAX_BLOCKS:
            self._workers.popitem(last=False)

    def longest(self, blocks: Sequence[bytes]) -> dict[int, int]:
        """Return, by worker, the tokens of the longest beginning that it has computed."""
        found: dict[int, int] = {}
        for number, block in enumerate(blocks, start=1):
            worker = self._workers.get(block)
            if worker is None:
                break
            found[worker] = number * BLOCK_TOKENS
        return found

    def forget(self, worker: int) -> None:
        """Forget a worker that is gone, and all that it kept."""
        for block in [block for block, there in self._workers.items() if there == worker]:
            del self._workers[block]
