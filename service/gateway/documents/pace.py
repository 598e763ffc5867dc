"""What storing documents takes: time by what was done so far, bytes as measured or expected.

    pending ── read, embedded: characters ── indexed ── KV computed: tokens ── done

Either has a rate, of the time in which there was something to do.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstitch.service.messages.replies import ModelInfo, Precomputed

RATE_WINDOW_S = 60.0  # what counts as just now
HORIZON_S = 300.0  # the shortest past that is taken for what comes next
MOST_POINTS = 512  # that a rate remembers; older ones are joined by twos
MIN_RATE_S = 0.5  # less is not measured
MIN_RATE_BYTES, MIN_RATE_TOKENS = 1000.0, 256.0  # nor is a note of a few words, which mostly waits
MEASURED_TOKENS = 1000  # from which on measured bytes are believed
BYTES_PER_TOKEN = 4.0  # of a document that is not indexed yet, before any was
UNCHANGED = 0.1  # share of a document's indexing that one takes which is stored already
MARGIN = 0.15  # of what rates of the past say of the future


Seconds = npt.NDArray[np.float64]
"""How long something takes: at least, probably, at most."""


@dataclass(frozen=True)
class WorkAhead:
    """What is to be done until a job's last document is: of its own, and of those that come
    first."""

    new_bytes: float = 0.0  # of documents that are not indexed yet
    known_bytes: float = 0.0  # of those that are expected to be stored as they are
    tokens: float = 0.0  # of documents whose KV is not stored yet
    last: int = 0  # number of the last document
    earlier: bool = False  # whether any is of an earlier job


class Rate:
    """How fast something goes on while there is something to do. As much of the past counts as
    the future that is asked for: questions that are asked for some minutes change little of
    an hour that is left."""

    def __init__(self, least: float, clock: Callable[[], float]) -> None:
        self._least = least  # amount from which on it is believed
        self._clock = clock
        self._points = [(0.0, 0.0)]  # (seconds of work, amount) so far
        self._worked_s = 0.0  # until `_began`
        self._began: float | None = None

    @property
    def working(self) -> bool:
        return self._began is not None

    def begin(self) -> None:
        """Note that there is something to do, unless there was before."""
        if self._began is None:
            self._began = self._clock()

    def end(self) -> None:
        """Note that there is nothing to do: the time until the next `begin` does not count."""
        self._worked_s, self._began = self._seconds, None

    def add(self, amount: float) -> None:
        """Note what was done since."""
        self._points.append((self._seconds, self._points[-1][1] + amount))
        if len(self._points) > MOST_POINTS:
            middle = MOST_POINTS // 2
            self._points = self._points[:middle:2] + self._points[middle:]

    def per_s(self, window_s: float = RATE_WINDOW_S) -> float | None:
        """Return the rate of so many last seconds of work; None if too little was ever done."""
        now, (_, total) = self._seconds, self._points[-1]
        for seconds, amount in reversed(self._points):
            enough = now - seconds >= MIN_RATE_S and total - amount >= self._least
            if enough and now - seconds >= window_s:
                break
        return (total - amount) / (now - seconds) if enough else None

    def time_for(self, amount: float) -> Seconds | None:
        """Return how long so much will take; None if that is not known."""
        if amount <= 0:
            return np.zeros(3)
        if (ever := self.per_s(float("inf"))) is None:
            return None
        horizon_s = max(HORIZON_S, amount / ever)
        windows = (horizon_s, horizon_s / 2, float("inf"))
        times = [amount / rate for each in windows if (rate := self.per_s(each))]
        return np.array([min(times) * (1 - MARGIN), times[0], max(times) * (1 + MARGIN)])

    @property
    def _seconds(self) -> float:
        """Seconds of work so far."""
        return self._worked_s + (0.0 if self._began is None else self._clock() - self._began)


class Pace:
    """Counts what is indexed and what is stored, each token with so many copies."""

    def __init__(self, copies: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._copies = copies
        self.indexing = Rate(MIN_RATE_BYTES, clock)  # in bytes of documents that are new
        self.storing = Rate(MIN_RATE_TOKENS, clock)  # in tokens
        self._seen = self._changed = 0.0  # bytes that were expected to change, and that did
        self._new_bytes, self._new_tokens = 1.0, 1 / BYTES_PER_TOKEN  # of all that was new
        self._stored_bytes = self._stored_tokens = 0.0

    def add(self, reply: Precomputed, lora: str, tokens: float) -> None:
        """Count a copy of a chunk, and its share of the chunk's tokens; one that was stored already
        says nothing of the rate."""
        if reply.status == "stored":
            self.storing.add(tokens)
            self._stored_bytes += reply.bytes
            self._stored_tokens += tokens

    def indexed(self, size: int, change: str, tokens: int, *, known: bool) -> None:
        """Count a document that was indexed, and whether it was what was expected."""
        self._seen += size * (not known)
        if change == "unchanged":
            self.indexing.add(UNCHANGED * size)
            return
        self._changed += size
        self._new_bytes += size
        self._new_tokens += tokens
        self.indexing.add(size)

    def end_indexing(self) -> None:
        """Note that nothing waits to be indexed: what comes next may be all new, or nothing."""
        self.indexing.end()
        self._seen = self._changed = 0.0

    def time_for(self, work: WorkAhead) -> Seconds | None:
        """Return how long it takes until such work is done; None if that is not known."""
        share = min(1.0, self._changed / self._seen) if self._seen else 1.0
        new = share * work.new_bytes
        known = work.known_bytes + work.new_bytes - new
        indexing = self.indexing.time_for(new + UNCHANGED * known)
        tokens = work.tokens + new * self._new_tokens / self._new_bytes
        storing = self.storing.time_for(tokens)
        if indexing is None or storing is None:
            return None
        together: Seconds = np.maximum(indexing, storing)
        return together if self.storing.working else indexing + storing

    def bytes_per_token(self, model: ModelInfo) -> float:
        if self._stored_tokens >= MEASURED_TOKENS:
            return self._stored_bytes / self._stored_tokens
        return (model.stored_bytes_per_token or model.kv_bytes_per_token) * self._copies
