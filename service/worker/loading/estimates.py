"""Estimates of how long reads and prefills take on this machine, learnt from measurements:
seconds = overhead + bytes or FLOPs / rate. Older measurements count less, so a few new ones are
enough to notice that the machine got busy or the network recovered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.plugins import tiers

# Weight of a measurement relative to the one after it: about the last ten count.
FADE = 0.9
# Weight of an artificial measurement of size zero that takes the initial overhead. It determines
# the overhead where all measured sizes are equal.
ANCHOR = 0.1
# Assumed latency (seconds) and bandwidth (bytes/s) of a tier that was never read, by name.
UNKNOWN_TIER = (2e-4, 300e6)
UNKNOWN_TIERS = {"s3": (4e-2, 100e6)}  # tens of milliseconds before the first byte
# Assumed overhead (seconds) and FLOP/s before anything was computed.
UNKNOWN_COMPUTE = {"cpu": (1e-4, 30e9), "cuda": (1e-4, 100e12)}
# Seconds after which a tier that was not read because it was slow is tried again.
STALE_S = 30.0


@dataclass
class Line:
    """y = overhead + slope · x, fitted by least squares; older points count less."""

    overhead: float  # never negative
    slope: float  # never negative
    count: int = 0  # number of points so far
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # w, wx, wy, wxx, wxy
    _anchor: float = field(init=False)

    def __post_init__(self) -> None:
        self._anchor = self.overhead

    def add(self, x: float, y: float) -> None:
        """Add a point and fit the line again."""
        self.count += 1
        new = (1.0, x, y, x * x, x * y)
        self._sums = [old * FADE + one for old, one in zip(self._sums, new, strict=True)]
        w, wx, wy, wxx, wxy = self._sums
        w, wy = w + ANCHOR, wy + ANCHOR * self._anchor
        spread = w * wxx - wx * wx
        if spread <= 0:
            return
        slope = (w * wxy - wx * wy) / spread
        overhead = (wy - slope * wx) / w
        if overhead < 0 or slope <= 0:
            overhead, slope = 0.0, wy / max(wx, 1e-30)
        self.overhead, self.slope = overhead, slope

    def at(self, x: float) -> float:
        """Return y at x."""
        return self.overhead + self.slope * x


class TierEstimates:
    """Estimates how long a tier takes to read some bytes, for any thread. If reads of a tier
    overlap, the later one counts only from the end of the earlier one: the bandwidth is that for
    all readers together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._last_end: dict[str, float] = {}

    def add(self, tier: str, nbytes: int, started: float, ended: float) -> None:
        """Add a read of so many bytes; its times are by the clock, in seconds."""
        with self._lock:
            line = self._lines.setdefault(tier, self._unknown(tier))
            counted_from = max(started, self._last_end.get(tier, started))
            self._last_end[tier] = max(ended, counted_from)
            line.add(nbytes, max(ended - counted_from, 1e-6))

    def seconds(self, tier: str, nbytes: float, reads: int = 1) -> float:
        """Return the expected seconds of `reads` reads of `nbytes` in total."""
        with self._lock:
            line = self._lines.get(tier) or self._unknown(tier)
            return line.overhead * reads + line.slope * nbytes

    def measured(self, tier: str) -> bool:
        """Return whether the tier was ever read."""
        with self._lock:
            return tier in self._lines

    def stale(self, tier: str) -> bool:
        """Return whether the tier's last read is longer ago than `STALE_S`."""
        with self._lock:
            return self._clock() - self._last_end.get(tier, self._clock()) > STALE_S

    def known(self) -> dict[str, tuple[float, float]]:
        """Return the latency (seconds) and bandwidth (bytes/s) of every tier that was read."""
        with self._lock:
            return {t: (line.overhead, 1 / line.slope) for t, line in self._lines.items()}

    @staticmethod
    def _unknown(tier: str) -> Line:
        latency, bandwidth = UNKNOWN_TIERS.get(tier, UNKNOWN_TIER)
        if (kind := tiers().get(tier)) is not None:
            latency, bandwidth = kind.first_read_s, kind.bytes_per_s
        return Line(latency, 1 / bandwidth)


class ComputeEstimate:
    """Estimates how long a prefill takes, from the FLOPs and seconds of earlier ones."""

    def __init__(self, device: str) -> None:
        overhead, rate = UNKNOWN_COMPUTE.get(device, UNKNOWN_COMPUTE["cuda"])
        self._line = Line(overhead, 1 / rate)

    def add(self, flops: float, seconds: float) -> None:
        """Add a prefill that was measured."""
        if flops > 0:
            self._line.add(flops, seconds)

    @property
    def measured(self) -> bool:
        """Whether any prefill was measured."""
        return self._line.count > 0

    @property
    def overhead_s(self) -> float:
        """Seconds that any prefill takes, besides its operations."""
        return self._line.overhead

    @property
    def flop_s(self) -> float:
        """Seconds per floating-point operation."""
        return self._line.slope
