"""One tier with everything around it that is the same for all tiers.

Circuit breaker, verification of what is read, counting, and deletes that are retried until they
succeed. Turns a tier's exceptions into outcomes, so that a broken tier is never an error of the
request. Knows one tier; the order of tiers is the store's.
"""

import logging
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from kvstore.chunk import EncodedChunk, require_spec
from kvstore.errors import (
    ChunkCorrupt,
    ChunkRefused,
    ChunkSpecError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)
from kvstore.header import ChunkHeader
from kvstore.spec import ChunkSpec
from kvstore.stats import TierStats
from kvstore.tiers.base import Tier, Usage
from kvstore.tiers.breaker import Breaker, BreakerSettings

T = TypeVar("T")

_log = logging.getLogger(__name__)

_HEADERS_KEPT = 64
# The tier answered, if only to say no: these say nothing against its health.
_ANSWERED = frozenset({"corrupt", "refused", "rejected"})


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """What one call gave: a value, or None with the problem, or None and None (nothing there)."""

    value: T | None
    problem: str | None


class GuardedTier:
    """Calls to one tier; none of them raises for a fault of the tier or of stored bytes."""

    def __init__(self, tier: Tier, breaker: BreakerSettings) -> None:
        self.tier = tier
        self.name = tier.name
        self.kind = tier.kind
        self._breaker = Breaker(breaker)
        self._lock = threading.Lock()
        self._ops: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        # Deletes that failed. Until they succeed the tier counts as not holding these keys.
        self._owed_deletes: set[str] = set()
        # A layer-by-layer reader would otherwise fetch and parse the header once per layer.
        self._headers: OrderedDict[str, ChunkHeader] = OrderedDict()

    def read(self, key: str, expect: ChunkSpec | None) -> Attempt[EncodedChunk]:
        """The whole chunk, verified; a bad copy is deleted."""
        if self._is_owed(key):
            return self._found("read", Attempt(None, None), 0)

        def work() -> EncodedChunk | None:
            chunk = self.tier.read(key)
            if chunk is not None:
                require_spec(chunk.header, expect)
                if self.kind != "memory":
                    chunk.verify()
            return chunk

        attempt = self._try("read", work)
        self._delete_if_bad(key, attempt.problem)
        return self._found("read", attempt, attempt.value.nbytes if attempt.value else 0)

    def read_layers(
        self, key: str, layers: Sequence[int], expect: ChunkSpec | None
    ) -> Attempt[tuple[ChunkHeader, dict[int, Tensor]]]:
        """Some layers' bytes, verified; a bad copy is deleted."""
        if self._is_owed(key):
            return self._found("read_layers", Attempt(None, None), 0)

        def work(header: ChunkHeader | None) -> tuple[ChunkHeader, dict[int, Tensor]] | None:
            header = header or self.tier.read_header(key)
            if header is None:
                return None
            require_spec(header, expect)
            found = self.tier.read_layers(key, header, layers)
            if found is None:
                return None
            if self.kind != "memory":
                for layer, raw in found.items():
                    header.verify_layer(layer, raw)
            return header, found

        known = self._recall(key)
        attempt = self._try("read_layers", lambda: work(known))
        if attempt.problem == "corrupt" and known is not None:
            # The chunk may have been replaced since its header was read; believe only fresh bytes.
            attempt = self._try("read_layers", lambda: work(None))
        self._delete_if_bad(key, attempt.problem)
        nbytes = 0
        if attempt.value is not None:
            header, found = attempt.value
            self._remember(key, header)
            nbytes = sum(raw.numel() for raw in found.values())
        else:
            self._forget([key])
        return self._found("read_layers", attempt, nbytes)

    def put(self, key: str, chunk: EncodedChunk) -> bool:
        """Whether the tier took it."""
        with self._lock:
            # An owed delete was of this same content, which is wanted again.
            self._owed_deletes.discard(key)
        self._forget([key])

        def work() -> bool:
            self.tier.put(key, chunk)
            return True

        attempt = self._try("write", work)
        self._count("write", attempt.problem or "ok", chunk.nbytes if attempt.value else 0)
        return attempt.value is not None

    def contains(self, keys: Collection[str]) -> set[str]:
        """Which of these it holds; none of them when it cannot be asked."""
        attempt = self._try("contains", lambda: self.tier.contains(keys))
        self._count("contains", attempt.problem or "ok")
        return self._without_owed(attempt.value or set())

    def delete(self, keys: Collection[str]) -> int | None:
        """How many copies went; None when it failed and will be retried."""
        self._forget(keys)
        attempt = self._try("delete", lambda: self.tier.delete(keys))
        self._count("delete", attempt.problem or "ok")
        if attempt.problem is not None:
            with self._lock:
                self._owed_deletes.update(keys)
        return attempt.value

    def settle(self) -> None:
        """Retry the deletes that failed."""
        with self._lock:
            owed = set(self._owed_deletes)
        if owed and self._breaker.state != "open" and self.delete(owed) is not None:
            with self._lock:
                self._owed_deletes -= owed

    def keys(self) -> set[str]:
        attempt = self._try("keys", lambda: set(self.tier.keys()))
        self._count("keys", attempt.problem or "ok")
        return self._without_owed(attempt.value or set())

    def stats(self) -> TierStats:
        attempt = self._try("usage", self.tier.usage)
        self._count("usage", attempt.problem or "ok")
        with self._lock:
            return TierStats(
                name=self.name,
                kind=self.kind,
                ops=dict(self._ops),
                bytes=dict(self._bytes),
                seconds=dict(self._seconds),
                usage=attempt.value or Usage(None, None, None, None),
                healthy=self._breaker.state == "closed",
                pending_deletes=len(self._owed_deletes),
            )

    def _try(self, op: str, work: Callable[[], T | None]) -> Attempt[T]:
        if not self._breaker.allow():
            return Attempt(None, "unavailable")
        started = time.perf_counter()
        value: T | None = None
        problem: str | None = None
        try:
            value = work()
        except ChunkSpecError:  # the caller's mistake
            self._breaker.succeeded()
            raise
        except Exception as error:
            problem = _problem(error)
            _log.warning("%s %s: %s: %s", self.name, op, problem, error)
        except BaseException:
            self._breaker.failed()
            raise
        if problem is None or problem in _ANSWERED:
            self._breaker.succeeded()
        else:
            self._breaker.failed(timeout=problem == "timeout")
        with self._lock:
            self._seconds[op] += time.perf_counter() - started
        return Attempt(value, problem)

    def _found(self, op: str, attempt: Attempt[T], nbytes: int) -> Attempt[T]:
        there = "miss" if attempt.value is None else "hit"
        self._count(op, attempt.problem or there, nbytes)
        return attempt

    def _count(self, op: str, outcome: str, nbytes: int = 0) -> None:
        with self._lock:
            self._ops[op, outcome] += 1
            self._bytes[op] += nbytes

    def _delete_if_bad(self, key: str, problem: str | None) -> None:
        if problem in ("corrupt", "refused"):
            self.delete([key])

    def _is_owed(self, key: str) -> bool:
        with self._lock:
            return key in self._owed_deletes

    def _without_owed(self, keys: set[str]) -> set[str]:
        with self._lock:
            return keys - self._owed_deletes

    def _recall(self, key: str) -> ChunkHeader | None:
        with self._lock:
            return self._headers.get(key)

    def _remember(self, key: str, header: ChunkHeader) -> None:
        with self._lock:
            self._headers[key] = header
            self._headers.move_to_end(key)
            if len(self._headers) > _HEADERS_KEPT:
                self._headers.popitem(last=False)

    def _forget(self, keys: Collection[str]) -> None:
        with self._lock:
            for key in keys:
                self._headers.pop(key, None)


def _problem(error: Exception) -> str:
    match error:
        case ChunkCorrupt():
            return "corrupt"
        case ChunkRefused():
            return "refused"
        case TierFull():
            return "rejected"
        case TierTimeout() | TimeoutError():
            return "timeout"
        case TierUnavailable():
            return "unavailable"
        case _:
            return "error"
