"""What storing a token of a document takes: time as measured, bytes as measured or expected."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from service.messages.replies import ModelInfo, Precomputed

RATE_WINDOW_S = 60.0  # what counts as recent
MIN_RATE_S = 0.5  # less is not measured: chunks that were stored already are answered at once
MIN_RATE_TOKENS = 256.0  # nor is a note of a few words, which mostly waits
MEASURED_TOKENS = 1000  # from which on measured bytes are believed
# Bits of a number, with the scales that stand beside a group of numbers.
_BITS = {"int8": 8.5, "k8v4": 6.75, "int4": 5, "int2": 3}
_RAW_BITS = {"float32": 32}


class Pace:
    """Counts what is stored, each token with so many copies. Its rate is that of the last minute
    that had something to store."""

    def __init__(self, copies: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._copies = copies
        self._clock = clock
        self._added: deque[tuple[float, float]] = deque()  # (when, tokens), the first one the start
        self._known: float | None = None  # until the present run has been measured
        self._stored_bytes = self._stored_tokens = 0.0

    def begin(self) -> None:
        """Note that there is something to compute, unless there was before."""
        if not self._added:
            self._added.append((self._clock(), 0.0))

    def add(self, reply: Precomputed, lora: str, tokens: float) -> None:
        """Count a copy of a chunk, and its share of the chunk's tokens."""
        now = self._clock()
        self._added.append((now, tokens))
        while len(self._added) > 2 and now - self._added[1][0] > RATE_WINDOW_S:
            self._added.popleft()
        if reply.status == "stored":
            self._stored_bytes += reply.bytes
            self._stored_tokens += tokens

    def end(self) -> None:
        """Note that there is nothing to compute: the time until the next `begin` does not count."""
        self._known = self.per_s
        self._added.clear()

    @property
    def per_s(self) -> float | None:
        """Tokens per second; None if less than MIN_RATE_TOKENS were ever stored in one run."""
        if len(self._added) < 2:
            return self._known
        seconds = self._clock() - self._added[0][0]
        tokens = sum(tokens for _, tokens in list(self._added)[1:])
        measured = seconds >= MIN_RATE_S and tokens >= MIN_RATE_TOKENS
        return tokens / seconds if measured else self._known

    def seconds_for(self, tokens: float) -> float | None:
        """Return how long so many tokens will take; None if that is not known."""
        rate = self.per_s
        return tokens / rate if rate else None

    def bytes_per_token(self, model: ModelInfo) -> float:
        if self._stored_tokens >= MEASURED_TOKENS:
            return self._stored_bytes / self._stored_tokens
        raw = _RAW_BITS.get(model.dtype, 16)
        return model.kv_bytes_per_token * _BITS.get(model.codec, raw) / raw * self._copies
